Feature: Replicas share what is to be pumped

  Nobody says who pumps what. The replicas of a component agree among themselves, and one that cannot know
  whether it owns anything owns nothing.

  Background:
    Given pots with the labels created, updated and deleted
    And replicas that agree on their lanes
    And a consumer of each of them

  Rule: Every lane has one owner

    Scenario: The first replica has all of them
      Given 300 rows of a dead writer
      When the service starts
      Then "created" arrives exactly once for each of the 300 pots

    Scenario: Several share them
      Given 300 rows of a dead writer
      When 3 services start at once
      Then "created" arrives exactly once for each of the 300 pots

    Scenario: The lanes of one that stops are another's
      When 2 services start at once
      And every lane is pumped
      And one of them is shut down
      And a dead writer leaves 300 rows
      Then "created" arrives exactly once for each of the 300 pots

  Rule: A replica that owns nothing does everything else

    Scenario: It publishes what it writes
      Given 60 s between their signs of life
      And an interval of 5000 ms
      And the service runs
      When 20 pots are created by 4 tasks
      Then "created" arrives exactly once for each of the 20 pots
      And every row is marked

  Rule: One collection is pumped in one way

    Scenario: A replica with a slot stands by where the others agree
      Given the service runs
      When every lane is pumped
      And a service with the slot 0/1 starts
      And a dead writer leaves 300 rows
      Then "created" arrives exactly once for each of the 300 pots
