Feature: Recover
  Whatever did not leave is found in the database and leaves later, whoever wrote it and whatever
  lies beside it.

  Background:
    Given pots with the labels created, updated and deleted
    And a consumer of each of them

  Rule: A row of a writer that died is published once it is due

    Scenario: Not before, and then
      Given a dead writer's row of the pot "late", due in 1500 ms
      And a dead writer's row of the pot "early", due for 1000 ms
      When the service starts
      Then "created" arrives for the pot "early"
      And "created" arrives for the pot "late", not before it was due
      And every row is marked
      And nothing else arrives

    Scenario: Only what is still owed
      Given a label "sync"
      And a dead writer's row of the pot "blue", with "outstanding" as ["amqp/sync"]
      When the service starts
      Then "sync" arrives for the pot "blue"
      And the row of the pot "blue" is marked
      And nothing else arrives

    Scenario: A backlog larger than a batch drains in one cycle
      Given a pump that runs only when told
      And a batch of 7 rows
      And the service runs
      And 100 rows of a dead writer
      When the pump runs
      Then the pump has found, published and marked 100 rows
      And every row has been marked
      And "created" has arrived exactly once for each of the 100 pots

  Rule: Rows of other writers are read as they are

    Scenario Outline: A row whose "<field>" is <value>
      Given a dead writer's row of the pot "blue", with "<field>" as <value>
      When the service starts
      Then "created" arrives for the pot "blue"
      And the row of the pot "blue" is marked
      And it still has "<field>" as <value>

      Examples:
        | field   | value                                                      |
        | _id     | "anything at all"                                          |
        | _id     | "0190163d8694739b8f0c1d3a9d2b6c11"                         |
        | _id     | { "$oid": "65f0a1b2c3d4e5f6a7b8c9d0" }                     |
        | _id     | { "$uuid": "0190163d-8694-739b-8f0c-1d3a9d2b6c11" }        |
        | _id     | { "$uuid": "7f0ad8b9-1f4c-4c43-9c52-3f0c3c1e9d11" }        |
        | lane    | { "$numberLong": "5" }                                     |
        | lane    | { "$numberDouble": "5.0" }                                 |
        | lane    | { "$numberDecimal": "5" }                                  |
        | pending | { "$numberInt": "5" }                                      |
        | pending | { "$numberDouble": "1700000000000.0" }                     |
        | pending | { "$numberDecimal": "1700000000000" }                      |
        | tenant  | { "name": "the tea house", "since": 1848 }                 |
        | event   | { "state": { "_id": "blue" } }                             |

    Scenario Outline: A row nobody can publish, <because>, is left as it is and delays none
      Given a dead writer's row of the pot "broken", with "<field>" as <value>
      And a dead writer's row of the pot "whole"
      When the service starts
      And the pump runs
      Then "created" arrives for the pot "whole"
      And the row of the pot "broken" is left as it was
      And nothing else arrives

      Examples:
        | because                         | field        | value              |
        | with a number for an id         | _id          | 7                  |
        | without an event                | event        | null               |
        | without a state                 | event        | { "origin": null } |
        | with a text for a state         | event.state  | "blue"             |
        | with a number for an origin     | event.origin | 1                  |
        | with a lane there is not        | lane         | 128                |
        | with a lane below zero          | lane         | -1                 |
        | with a fraction of a lane       | lane         | 1.5                |
        | with a text for a lane          | lane         | "5"                |
        | that says not when              | pending      | null               |
        | that says when in words         | pending      | "tomorrow"         |
        | that owes a number              | outstanding  | [1]                |

    Scenario: A row whose id is too long for AMQP waits and delays none
      Given a dead writer's row of the pot "wordy", with an id of 256 letters
      And a dead writer's row of the pot "brief", with an id of 255 letters
      When the service starts
      Then "created" arrives for the pot "brief"
      And the row of the pot "wordy" owes only amqp/created
      And nothing else arrives

    Scenario: Rows nobody can publish are counted
      Given a pump that runs only when told
      And the service runs
      And a dead writer's row of the pot "broken", with "event" as null
      And a dead writer's row of the pot "whole"
      When the pump runs
      Then the pump has found 1 row to publish and 1 that nobody can

    Scenario: Rows nobody can publish do not fill up the batch
      Given a batch of 3 rows
      And 30 rows of a dead writer, with "event" as null
      And a dead writer's row of the pot "whole"
      When the service starts
      Then "created" arrives for the pot "whole"

  Rule: A replica pumps its own lanes only

    Scenario: Lanes of the other replica are left alone
      Given the service has the slot 0/2
      And a dead writer's row of the pot "mine", with "lane" as 4
      And a dead writer's row of the pot "theirs", with "lane" as 5
      When the service starts
      Then "created" arrives for the pot "mine"
      When the pump runs
      Then the row of the pot "theirs" is left as it was
      And nothing else arrives
      When a service with the slot 1/2 starts
      Then "created" arrives for the pot "theirs"
      And nothing else arrives

    Scenario: A replica writes into its own lanes
      Given the service has the slot 1/2
      When 50 pots are created by 4 tasks
      Then every row is in an odd lane

  Rule: What this process knows it could not send leaves as soon as the broker is back

    Scenario: The broker was away while pots were created
      Given a pump that runs only when told
      And the service runs
      And the broker is away
      When 20 pots are created by 4 tasks
      And the broker is back
      Then "created" arrives exactly once for each of the 20 pots within 10 seconds
