Feature: Sinks

  A row goes to every sink that wants one of its labels, and none of them waits for another.

  Background:
    Given pots with the labels created, updated and deleted

  Rule: Each is given what it wants

    Scenario: Beside the broker
      Given a consumer of each of them
      And a sink "search" of "tea_pots.*"
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And the sink "search" takes "created" of the pot "blue"
      And the row of the pot "blue" is marked

    Scenario: Instead of the broker
      Given no broker is configured
      And a sink "search" of "tea_pots.*"
      When the pot "blue" is created
      Then the sink "search" takes "created" of the pot "blue"
      And the row of the pot "blue" is marked

    Scenario: Only the labels that fit its patterns
      Given a sink "search" of "tea_pots.created tea_pots.deleted"
      And a sink "audit" of "*"
      When the pot "blue" is created
      And the pot "blue" is transited to { "material": "clay" }
      And the pot "blue" is terminated
      Then the sink "audit" takes "created" of the pot "blue"
      And the sink "audit" takes "updated" of the pot "blue"
      And the sink "audit" takes "deleted" of the pot "blue"
      And the sink "search" takes "created" of the pot "blue"
      And the sink "search" takes "deleted" of the pot "blue"
      And every row is marked
      And no sink takes anything else

    Scenario: What dead writers left
      Given 300 rows of a dead writer
      And a sink "search" of "tea_pots.*"
      When the service starts
      Then the sink "search" takes "created" of each of the 300 pots once
      And every row is marked

    Scenario: What they are owed while the broker is away
      Given the broker is away
      And a sink "search" of "tea_pots.*"
      When 50 pots are created by 4 tasks
      Then the sink "search" takes "created" of each of the 50 pots once
      And every row owes nothing but "amqp/created amqp/updated amqp/deleted"

    Scenario: On a standalone server the operation waits for all of them
      Given a standalone MongoDB
      And a consumer of each of them
      And a sink "search" of "tea_pots.*"
      When the pot "blue" is created
      Then the sink "search" has taken "created" of the pot "blue"
      And "created" arrives for the pot "blue"

  Rule: One that fails holds up no other

    Scenario Outline: One <does>
      Given a consumer of each of them
      And a sink "good" of "tea_pots.*"
      And a sink "bad" of "tea_pots.*", which <does>
      And the sink "bad" gives nothing up
      And a sink "picky" of "tea_pots.updated"
      When 1000 pots are created by 8 tasks
      Then the sink "good" takes "created" of each of the 1000 pots once
      And every row owes nothing but "bad/created bad/updated bad/deleted"
      And the sink "bad" has taken nothing
      When the sink "bad" works again
      Then the sink "bad" takes "created" of each of the 1000 pots once
      And "created" arrives exactly once for each of the 1000 pots
      And no sink takes anything else

      Examples:
        | does            |
        | fails           |
        | panics          |
        | hangs           |
        | rejects         |
        | asks for a rest |

    Scenario Outline: One message it <does> is found, and the others go
      Given a sink "bad" of "tea_pots.*", which <does> the pot "pot-37"
      And the sink "bad" gives nothing up
      When 300 pots are created by 8 tasks
      Then the sink "bad" takes "created" of each of the 300 pots once but "pot-37"
      And only the row of the pot "pot-37" is not marked
      When the sink "bad" works again
      Then the sink "bad" takes "created" of the pot "pot-37"
      And every row is marked
      And no sink takes anything else

      Examples:
        | does    |
        | fails   |
        | rejects |
        | hangs   |

  Rule: Replicas share what a sink is owed

    Scenario: Each row reaches it once
      Given replicas that agree on their lanes
      And 2 s between their signs of life
      And a sink "search" of "tea_pots.*"
      When 2 services start at once
      And every lane is pumped
      And a dead writer leaves 300 rows
      And each service creates 40 pots
      Then the sink "search" takes "created" of 380 pots once
      And every row is marked

    Scenario: A replica that does not know it yet leaves what it is owed to those who do
      Given replicas that agree on their lanes
      And the service runs
      And a sink "search" of "tea_pots.*"
      When one more service starts
      And every lane is pumped
      And 50 pots are created by 4 tasks
      And a dead writer leaves 20 rows
      Then the sink "search" takes "created" of 70 pots once
      And every row is marked

  Rule: What cannot be used is refused

    Scenario Outline: <what>
      Given a sink "<name>" of "<patterns>"
      And a sink "search" of "tea_pots.*"
      When the service starts in vain
      Then the caller is told: <told>

      Examples:
        | what                         | name    | patterns     | told                                         |
        | The broker's name            | amqp    | tea_pots.*   | that is the broker's                         |
        | A name with a slash          | a/b     | tea_pots.*   | expected 1 to 100 letters, digits or . _ - @ |
        | Two of one name              | search  | tea_pots.*   | there is another of that name                |
        | A pattern that fits no label | reports | tea_cups.*   | expected one that fits a label               |
        | No pattern at all            | reports |              | expected at least one pattern                |
