Feature: Write
  A state change and its events commit together or not at all, and no operation waits for the broker.

  Background:
    Given pots with the labels created, updated and deleted
    And a consumer of each of them

  Rule: The event commits with the change

    Scenario: A pot and its event
      When the pot "blue" is created with { "material": "clay" } and the input { "by": "ann" }
      Then the pot "blue" is stored as { "_id": "blue", "material": "clay", "_version": 1 }
      And "created" arrives as { "_id": "blue", "material": "clay", "_version": 1 }
      And the row of the pot "blue" is marked
      And nothing else arrives

    Scenario: What a row says
      Given the broker is away
      When the pot "blue" is created with { "material": "clay" } and the input { "by": "ann" }
      Then the row of the pot "blue" has the fields _id, lane, published, pending and event
      And its id is a UUID of version 7
      And its lane is a whole number from 0 to 127
      And it is due three intervals after it was written
      And its event is { "origin": null, "state": { "_id": "blue", "material": "clay", "_version": 1 }, "trailers": null, "input": { "by": "ann" } }

    Scenario Outline: A transaction that ends badly leaves nothing behind
      When a transaction creates the pot "blue" and then <ends>
      Then the caller is told: <told>
      And the pot "blue" is not stored
      And there are 0 rows
      And nothing else arrives
      And a shutdown leaves nothing

      Examples:
        | ends                     | told                 |
        | gives up                 | out of clay          |
        | violates a unique index  | duplicate key        |
        | panics                   | the pot was dropped  |

    Scenario: After a transaction that panicked the next one finds no locks
      When a transaction creates the pot "blue" and then panics
      And the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And there is 1 row

    Scenario: A transaction may emit several events
      When a transaction creates the pots "blue" and "green"
      Then "created" arrives for the pot "blue"
      And "created" arrives for the pot "green"
      And there are 2 rows

    Scenario: A transaction that is repeated writes its row once
      Given the pot "blue" is stored as { "temperature": 0 }
      When 5 transactions at once each add 1 to the temperature of the pot "blue"
      Then the pot "blue" is stored as { "_id": "blue", "temperature": 5 }
      And there are 5 rows
      And "updated" arrives 5 times in all

    Scenario: A service that runs its own transactions
      When a transaction of the service's own creates the pot "blue", commits and publishes
      Then "created" arrives for the pot "blue"
      And nothing else arrives

    Scenario: A service that commits and never hands the row over
      When a transaction of the service's own creates the pot "blue" and commits
      Then "created" arrives for the pot "blue"

    Scenario: A service that aborts its own transaction
      When a transaction of the service's own creates the pot "blue" and aborts
      Then there are 0 rows
      And nothing else arrives

  Rule: The id of a row says that it is the same event

    Scenario: Written twice
      When the event { "_id": "blue", "of": { "a": 1, "b": 2 } } is written under the id "first"
      And the event { "of": { "b": 2, "a": 1 }, "_id": "blue" } is written under the id "first"
      Then "created" arrives for the pot "blue"
      And there is 1 row
      And nothing else arrives

    Scenario: Written again after it was published
      When the event { "_id": "blue" } is written under the id "first"
      Then the row of the pot "blue" is marked
      When the event { "_id": "blue" } is written under the id "first"
      Then "created" arrives for the pot "blue"
      And there is 1 row
      And nothing else arrives

    Scenario: Another event under the same id
      When the event { "_id": "blue" } is written under the id "first"
      And the event { "_id": "green" } is written under the id "first" in vain
      Then the caller is told: row first of
      And "created" arrives for the pot "blue"
      And there is 1 row
      And nothing else arrives

    Scenario: The transaction that was told may go on
      When the event { "_id": "blue" } is written under the id "first"
      And a transaction is told that the id "first" is taken, and writes { "_id": "green" } under another
      Then "created" arrives for the pot "blue"
      And "created" arrives for the pot "green"
      And there are 2 rows

    Scenario: By many at once
      When the event { "_id": "blue" } is written under the id "first" by 8 tasks
      Then "created" arrives for the pot "blue"
      And there is 1 row
      And nothing else arrives

  Rule: An event may be for later

    Scenario: It is published when it is due
      When the event { "_id": "blue" } is written for 2000 ms later
      And the pot "green" is created
      Then "created" arrives for the pot "green"
      And "created" arrives for the pot "blue", not before it was due
      And the row of the pot "blue" is marked

    Scenario: A standalone server keeps nothing for later
      Given a standalone MongoDB
      When the event { "_id": "blue" } is written for 2000 ms later in vain
      Then the caller is told: keeps no row that could be published later
      And nothing else arrives

  Rule: Changes produce their event by themselves

    Background:
      Given a label "changed" that carries the whole event

    Scenario: Create
      When the pot "blue" is created with { "material": "clay" } and the input { "by": "ann" }
      Then "changed" arrives as { "origin": null, "state": { "_id": "blue", "material": "clay", "_version": 1 }, "trailers": null, "input": { "by": "ann" } }

    Scenario: Transit
      Given the pot "blue" is stored as { "temperature": 20, "_version": 7 }
      When the pot "blue" is transited to { "temperature": 100 } with the input { "by": "ann" }
      Then "changed" arrives as { "origin": { "_id": "blue", "temperature": 20, "_version": 7 }, "state": { "_id": "blue", "temperature": 100, "_version": 8 }, "trailers": {}, "input": { "by": "ann" } }

    Scenario: Trailers reach the labels and are never stored in the entity
      Given the pot "blue" is stored as { "temperature": 20, "_version": 7 }
      When the pot "blue" is transited to { "temperature": 100 } with the trailers { "alarm": "whistle" }
      Then "changed" arrives as { "origin": { "_id": "blue", "temperature": 20, "_version": 7 }, "state": { "_id": "blue", "temperature": 100, "_version": 8 }, "trailers": { "alarm": "whistle" }, "input": null }
      And the pot "blue" is stored as { "_id": "blue", "temperature": 100, "_version": 8 }

    Scenario: Assign carries the state before and after, and no trailers
      Given the pot "blue" is stored as { "temperature": 20, "_version": 7 }
      When the pot "blue" is assigned { "$mul": { "temperature": 5 } } with the input { "by": "ann" }
      Then "changed" arrives as { "origin": { "_id": "blue", "temperature": 20, "_version": 7 }, "state": { "_id": "blue", "temperature": 100, "_version": 8 }, "trailers": null, "input": { "by": "ann" } }
      And the pot "blue" is stored as { "_id": "blue", "temperature": 100, "_version": 8 }

    Scenario: Terminate marks the pot deleted and keeps it
      Given the pot "blue" is stored as { "temperature": 20, "_version": 7 }
      When the pot "blue" is terminated
      Then the pot "blue" is stored with a date as "_deleted"
      And "deleted" arrives for the pot "blue"

    Scenario Outline: Changes made at once all land, each with an event of its own
      Given the pot "blue" is stored as { "temperature": 0, "_version": 1 }
      When 10 tasks at once each add 1 to the temperature of the pot "blue" by <change>
      Then the pot "blue" is stored as { "_id": "blue", "temperature": 10, "_version": 11 }
      And "changed" arrives for each version of the pot "blue" from 2 to 11, each from the one before

      Examples:
        | change  |
        | transit |
        | assign  |

  Rule: What cannot be done is refused with a reason, and nothing happens

    Scenario: Changing a pot that does not exist
      When the pot "blue" is transited to { "temperature": 100 } in vain
      Then the caller is told: does not exist
      And there are 0 rows

    Scenario: Terminating a pot twice
      Given the pot "blue" is stored as { "_version": 1 }
      When the pot "blue" is terminated
      And the pot "blue" is terminated in vain
      Then the caller is told: does not exist
      And there is 1 row

    Scenario: A row of more than 16 MB
      Given the pot "huge" is stored with 9 million bytes
      When the pot "huge" is transited to { "temperature": 100 } in vain
      Then the caller is told that the row is too large, and how large it would be
      And there are 0 rows
      And the pot "huge" is at version 1

    Scenario Outline: What BSON cannot hold, such as a name with a null character
      Given the pot "blue" is stored as { "_version": 7 }
      When the pot <is changed>
      Then the caller is told: cannot be written as BSON
      And the pot "green" is not stored
      And the pot "blue" is at version 7
      And there are 0 rows

      Examples:
        | is changed                                                                              |
        | "green" is created in vain with { "nul\\u0000": 1 }                                     |
        | "green" is created in vain with { "lid": 1 } and the input { "nul\\u0000": 1 }          |
        | "blue" is transited to { "nul\\u0000": 1 } in vain                                      |
        | "blue" is transited to { "lid": 1 } with the input { "nul\\u0000": 1 } in vain          |
        | "blue" is transited to { "lid": 1 } with the trailers { "nul\\u0000": 1 } in vain       |
        | "blue" is assigned { "$set": { "nul\\u0000": 1 } } in vain                              |
        | "blue" is assigned { "$set": { "lid": 1 } } with the input { "nul\\u0000": 1 } in vain  |

  Rule: No operation waits for the broker

    Scenario Outline: A broker that <is> delays no commit
      Given the broker <is>
      When the pot "blue" is created
      Then the pot "blue" is stored as { "_id": "blue", "_version": 1 }
      When the broker is back
      Then "created" arrives for the pot "blue"

      Examples:
        | is             |
        | is away        |
        | has gone quiet |

  Rule: No more is written than may wait

    Scenario: What is over the ceiling is refused, and what is there is published
      Given the broker is away
      And no more than 2 rows may wait
      When the pot "blue" is created
      And the pot "red" is created
      And the pot "green" is created in vain
      Then the caller is told: the outbox holds 2 rows and no more
      And the pot "green" is not stored
      When the broker is back
      Then "created" arrives for the pot "blue"
      And "created" arrives for the pot "red"
      And every row is marked
      And nothing else arrives

  Rule: What is redacted is neither stored nor published

    Scenario: The entity keeps it
      Given the field card of the state is redacted
      When the pot "blue" is created with { "card": "4242", "material": "clay" } and the input { "by": "ann" }
      Then the pot "blue" is stored as { "_id": "blue", "card": "4242", "material": "clay", "_version": 1 }
      And "created" arrives as { "_id": "blue", "material": "clay", "_version": 1 }
      And the row of the pot "blue" is marked
      And its event is { "origin": null, "state": { "_id": "blue", "material": "clay", "_version": 1 }, "trailers": null, "input": { "by": "ann" } }

  Rule: Rows are written only where something consumes their events

    Scenario: Only what is consumed is published
      Given only the label created is consumed
      When the pot "blue" is created
      And the pot "blue" is assigned { "$set": { "temperature": 100 } }
      Then "created" arrives for the pot "blue"
      And every row is marked
      And nothing else arrives

    Scenario: Nothing is consumed
      Given no label is consumed, and there is no broker
      When the pot "blue" is created with { "material": "clay" }
      And the pot "blue" is assigned { "$set": { "temperature": 100 } }
      Then the pot "blue" is stored as { "_id": "blue", "material": "clay", "temperature": 100, "_version": 2 }
      And there is no outbox collection

    Scenario: A consumed label that is not declared is a mistake
      Given only the label creatd is consumed
      When the service starts in vain
      Then the caller is told: "creatd", which is not declared
      And there is no outbox collection

  Rule: The collection is there before the first transaction

    Scenario: Services that start at once agree on the collection
      When 8 services start at once
      Then the outbox collection has its two indexes
      And 8 pots are created, one by each service
      And "created" arrives at least once for each of the 8 pots

  Rule: A standalone server has no transactions, so the operation publishes its events itself

    Background:
      Given a standalone MongoDB

    Scenario: The event has arrived by the time the operation returns
      When the pot "blue" is created
      Then "created" has arrived for the pot "blue"
      And there is no outbox collection

    Scenario: The operation waits for the broker
      Given the broker is away
      When the pot "blue" is being created
      And the pot "blue" has been stored
      Then the operation is not over
      When the broker is back
      Then the operation is over
      And "created" has arrived for the pot "blue"

    Scenario: A broker that stays away is reported
      Given the broker is away
      And operations are given up after 300 ms
      When the pot "blue" is created in vain
      Then the caller is told: was not published
      And the pot "blue" is stored as { "_id": "blue", "_version": 1 }

    Scenario: An operation that fails publishes nothing
      When a transaction creates the pot "blue" and then gives up
      Then the caller is told: out of clay
      And nothing else arrives
