Feature: Publish
  What was committed leaves at once, under every label that fits, and is marked.

  Background:
    Given pots with the labels created, updated and deleted
    And a consumer of each of them

  Rule: At once, and once

    Scenario: A committed row does not wait for the pump
      Given a pump that runs only when told
      When the pot "blue" is created
      Then "created" arrives for the pot "blue" within 5 seconds
      And the row of the pot "blue" is marked

    Scenario: When only the pump delivers, nothing leaves without it
      Given a pump that runs only when told
      And only the pump delivers
      When the pot "blue" is created
      Then nothing has arrived
      When the pump runs
      Then "created" arrives for the pot "blue"
      And the row of the pot "blue" is marked
      And nothing else arrives

    Scenario: The pump can be nudged
      Given a pump that runs only when told
      And only the pump delivers
      When the pot "blue" is created
      And the pump is nudged
      Then "created" arrives for the pot "blue" within 5 seconds

    Scenario: Under load each event arrives exactly once
      When 400 pots are created by 8 tasks
      Then "created" arrives exactly once for each of the 400 pots

    Scenario: Two replicas do not publish each other's rows
      Given an interval of 700 ms
      And two services that share the lanes
      When each service creates 40 pots
      Then "created" arrives exactly once for each of the 80 pots

    Scenario: A marked row says when, by the server's clock
      When the pot "blue" is created
      Then the row of the pot "blue" is marked
      And it was marked between its writing and now, by the server's clock

  Rule: A label goes out when it fits

    Scenario: The life of a pot
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      When the pot "blue" is assigned { "$set": { "temperature": 100 } }
      Then "updated" arrives for the pot "blue"
      When the pot "blue" is terminated
      Then "deleted" arrives for the pot "blue"
      And nothing else arrives

    Scenario: Every change is a sync, for those who ask for it
      Given a label "sync"
      When the pot "blue" is created
      Then "sync" arrives for the pot "blue"
      And "created" arrives for the pot "blue"
      When the pot "blue" is terminated
      Then "sync" arrives for the pot "blue"
      And "deleted" arrives for the pot "blue"
      And nothing else arrives

    Scenario: A label with a condition and a payload of its own
      Given a label "boiled" for pots of 100 degrees and more, that carries the input
      When the pot "warm" is created with { "temperature": 60 } and the input { "by": "ann" }
      And the pot "hot" is created with { "temperature": 100 } and the input { "by": "bob" }
      Then "boiled" arrives as { "by": "bob" }
      And "created" arrives for the pot "warm"
      And "created" arrives for the pot "hot"
      And nothing else arrives

    Scenario: A row that no label fits is marked without sending
      Given pots with the label deleted
      When the pot "blue" is created
      Then the row of the pot "blue" is marked
      And nothing else arrives

  Rule: A label that cannot be rendered delays nothing but itself

    Scenario Outline: A label whose <part> <fault>
      Given a label "priced" whose <part> <fault>
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And the row of the pot "blue" owes only amqp/priced
      And it is not marked
      When the pot "green" is created
      Then "created" arrives for the pot "green"
      And nothing else arrives
      When "priced" can be rendered
      Then "priced" arrives for the pot "blue"
      And "priced" arrives for the pot "green"
      And every row is marked
      And nothing else arrives

      Examples:
        | part      | fault  |
        | payload   | fails  |
        | payload   | panics |
        | condition | fails  |
        | condition | panics |
