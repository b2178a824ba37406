Feature: Ordered sinks

  A sink may be given the rows in the order of their commits, from the oldest that the outbox holds, by one replica at a time.

  Background:
    Given pots with the labels created, updated and deleted

  Rule: It begins with what the outbox holds

    Scenario: Published long ago
      Given a consumer of each of them
      And a sink "warehouse" of "tea_pots.*"
      And the sink "warehouse" keeps the order of the commits
      When the sink "warehouse" is not in the next version
      And the service starts
      And 50 pots are created by 4 tasks
      Then every row is marked
      When the sink "warehouse" is back in one more service
      Then the sink "warehouse" takes "created" of each of the 50 pots once
      And every row is marked
      And no sink takes anything else

    Scenario: Left by dead writers
      Given no broker is configured
      And 300 rows of a dead writer
      And a sink "warehouse" of "tea_pots.*"
      And the sink "warehouse" keeps the order of the commits
      When the service starts
      Then the sink "warehouse" takes "created" of each of the 300 pots once
      And every row is marked

    Scenario: Or it begins now
      Given 20 rows of a dead writer
      And a sink "warehouse" of "tea_pots.*"
      And the sink "warehouse" keeps the order of the commits from now on
      When the service starts
      Then every row is marked
      And the sink "warehouse" has taken nothing
      When the pot "blue" is created
      Then the sink "warehouse" takes "created" of the pot "blue"
      And no sink takes anything else

  Rule: It goes on where it was

    Scenario: After it was away
      Given a consumer of each of them
      And a sink "warehouse" of "tea_pots.*"
      And the sink "warehouse" keeps the order of the commits
      When the pot "blue" is created
      Then the sink "warehouse" takes "created" of the pot "blue"
      And every row is marked
      When the service is shut down
      And the sink "warehouse" is not in the next version
      And the service starts again
      And the pot "green" is created
      Then "created" arrives for the pot "green"
      When the sink "warehouse" is back in one more service
      Then the sink "warehouse" takes "created" of the pot "green"
      And every row is marked
      And no sink takes anything else

    Scenario: In another replica
      Given replicas that agree on their lanes
      And 2 s between their signs of life
      And a consumer of each of them
      And a sink "warehouse" of "tea_pots.created"
      And the sink "warehouse" keeps the order of the commits
      When 2 services start at once
      And every lane is pumped
      And each service creates 20 pots
      Then the sink "warehouse" takes "created" of 40 pots once
      When one of them is shut down
      And a dead writer leaves 20 rows
      Then the sink "warehouse" takes "created" of 60 pots once

  Rule: What it rejects holds up nothing

    Scenario: It is given up at once
      Given a sink "warehouse" of "tea_pots.created", which rejects the pot "pot-37"
      And the sink "warehouse" keeps the order of the commits
      When 300 pots are created by 8 tasks
      Then the sink "warehouse" takes "created" of each of the 300 pots once but "pot-37"
      And the delivery of "created" of the pot "pot-37" to "warehouse" is dead after 1 attempt
      And its row is kept with it
      And every row is marked
