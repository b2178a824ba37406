Feature: Deliveries that fail

  What a sink does not take for itself is tried again at a time of its own, given up after so many attempts, and kept.

  Background:
    Given pots with the labels created, updated and deleted

  Rule: One that fails is tried again by itself

    Scenario: Until it is taken
      Given a consumer of each of them
      And a sink "bad" of "tea_pots.*", which fails the pot "pot-37"
      And the sink "bad" gives up after 100 attempts
      When 300 pots are created by 8 tasks
      Then the sink "bad" takes "created" of each of the 300 pots once but "pot-37"
      And the delivery of "created" of the pot "pot-37" to "bad" is retrying
      And only the row of the pot "pot-37" is not marked
      And it owes "retrying bad/created" alone
      When the sink "bad" works again
      Then the sink "bad" takes "created" of the pot "pot-37"
      And every row is marked
      And no delivery is known
      And no sink takes anything else

    Scenario Outline: One it <does> is given up after 3 attempts, and its row goes
      Given a consumer of each of them
      And a sink "bad" of "tea_pots.created", which <does> the pot "pot-37"
      And the sink "bad" gives up after 3 attempts
      When 300 pots are created by 8 tasks
      Then the sink "bad" takes "created" of each of the 300 pots once but "pot-37"
      And the delivery of "created" of the pot "pot-37" to "bad" is dead after 3 attempts
      And its row is kept with it
      And every row is marked
      When the sink "bad" works again
      Then no sink takes anything else

      Examples:
        | does   |
        | fails  |
        | hangs  |
        | panics |

    Scenario: One it rejects is given up at once
      Given a sink "bad" of "tea_pots.created", which rejects the pot "pot-37"
      When 300 pots are created by 8 tasks
      Then the sink "bad" takes "created" of each of the 300 pots once but "pot-37"
      And the delivery of "created" of the pot "pot-37" to "bad" is dead after 1 attempt
      And its row is kept with it
      And every row is marked

    Scenario: An outage of the destination gives nothing up
      Given a sink "bad" of "tea_pots.created", which is away
      And the sink "bad" gives up after 2 attempts
      When 50 pots are created by 4 tasks
      Then every row owes nothing but "bad/created"
      And no delivery is known
      When the sink "bad" works again
      Then the sink "bad" takes "created" of each of the 50 pots once
      And every row is marked

    Scenario: Whoever has the sink tries it again
      Given a sink "bad" of "tea_pots.created", which fails the pot "blue"
      And the sink "bad" gives up after 100 attempts
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "bad" is retrying
      When the service is shut down
      And the sink "bad" works again
      And the service starts again
      Then the sink "bad" takes "created" of the pot "blue"
      And every row is marked
      And no delivery is known

    Scenario: Whoever gives nothing up any more tries it again
      Given a sink "bad" of "tea_pots.created", which fails the pot "blue"
      And the sink "bad" gives up after 100 attempts
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "bad" is retrying
      When the service is shut down
      And the sink "bad" works again
      And the sink "bad" gives nothing up
      And the service starts again
      Then the sink "bad" takes "created" of the pot "blue"
      And every row is marked
      And no delivery is known

    Scenario: A claim of one that died lapses
      Given a sink "bad" of "tea_pots.created", which fails the pot "blue"
      And the sink "bad" gives up after 100 attempts
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "bad" is retrying
      When the service is shut down
      And the sink "bad" works again
      And one that died had claimed it
      And the service starts again
      Then the sink "bad" takes "created" of the pot "blue"
      And no delivery is known

    Scenario: What is known of it is lost
      Given a sink "bad" of "tea_pots.created", which fails the pot "blue"
      And the sink "bad" gives up after 100 attempts
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "bad" is retrying
      When the service is shut down
      And the sink "bad" works again
      And every delivery is deleted
      And the service starts again
      Then the sink "bad" takes "created" of the pot "blue"
      And every row is marked
      And no sink takes anything else

    Scenario: What was given up in the middle is finished
      Given a sink "bad" of "tea_pots.created", which fails the pot "blue"
      And the sink "bad" gives up after 100 attempts
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "bad" is retrying
      When the service is shut down
      And one that died had just given it up
      And the service starts again
      Then every row is marked
      And the delivery of "created" of the pot "blue" to "bad" is dead after 7 attempts

  Rule: A sink is owed what is committed while nobody has it

    Scenario: While no replica does
      Given a consumer of each of them
      And a sink "search" of "tea_pots.*"
      And the service runs
      When the service is shut down
      And the sink "search" is not in the next version
      And the service starts again
      And 50 pots are created by 4 tasks
      Then every row owes nothing but "search/created search/updated search/deleted"
      When the sink "search" is back in one more service
      Then the sink "search" takes "created" of each of the 50 pots once
      And every row is marked

    Scenario: A label that its sink has not had for the grace is let go
      Given a consumer of each of them
      And a grace of 2 s for consumers
      And a sink "search" of "tea_pots.*"
      And the service runs
      When the service is shut down
      And the sink "search" wants "tea_pots.deleted" alone in the next version
      And the service starts again
      And 20 pots are created by 4 tasks
      Then every row is marked
      And the sink "search" has taken nothing

    Scenario: One that begins now skips the backlog
      Given 20 rows of a dead writer
      And a sink "late" of "tea_pots.*", which begins now
      When the service starts
      Then every row is marked
      And the sink "late" has taken nothing
      When the pot "blue" is created
      Then the sink "late" takes "created" of the pot "blue"
      And no sink takes anything else

  Rule: A destination may ask for a pause

    Scenario: All replicas keep it, and who comes later, until it is resumed
      Given replicas that agree on their lanes
      And 2 s between their signs of life
      And a consumer of each of them
      And a sink "bad" of "tea_pots.created", which asks for a pause
      When 2 services start at once
      And every lane is pumped
      And each service creates 20 pots
      Then the sink "bad" is paused by the circuit "closed-for-tea"
      And each row owes "bad/created" or nothing
      When the sink "bad" works again
      And one more service starts
      And a dead writer leaves 20 rows
      Then the sink "bad" has taken nothing
      When the sink "bad" is resumed
      Then the sink "bad" takes "created" of 60 pots once
      And every row is marked

  Rule: A handler in the service is a consumer

    Scenario: Each has its own, and none holds up another
      Given a consumer of each of them
      And a handler "billing" of "tea_pots.created"
      And a handler "search" of "tea_pots.*", which fails the pot "pot-37"
      And a handler "mailing" of "tea_pots.created", which hangs the pot "pot-38"
      When 100 pots are created by 8 tasks
      Then the sink "billing" takes "created" of each of the 100 pots once
      And the sink "search" takes "created" of each of the 100 pots once but "pot-37"
      And the sink "mailing" takes "created" of each of the 100 pots once but "pot-38"
      And the delivery of "created" of the pot "pot-37" to "search" is retrying
      And the delivery of "created" of the pot "pot-38" to "mailing" is retrying
      And no sink takes anything else

    Scenario: A handler that panics is dead after ten attempts
      Given a handler "billing" of "tea_pots.created", which panics the pot "blue"
      When the pot "blue" is created
      Then the delivery of "created" of the pot "blue" to "billing" is retrying after 1 attempt
      When nine of its attempts have failed
      Then the delivery of "created" of the pot "blue" to "billing" is dead after 10 attempts
      And every row is marked

    Scenario: Several of one name
      Given a handler "billing" of "tea_pots.created"
      And a handler "billing" of "tea_pots.deleted"
      When the pot "blue" is created
      And the pot "blue" is terminated
      Then the sink "billing" takes "created" of the pot "blue"
      And the sink "billing" takes "deleted" of the pot "blue"
      And no sink takes anything else

    Scenario: Two of one name for one label
      Given a handler "billing" of "tea_pots.created"
      And a handler "billing" of "tea_pots.*"
      When the service starts in vain
      Then the caller is told: which has a handler under this name

    Scenario: One that nobody has had for the grace is abandoned
      Given a consumer of each of them
      And a grace of 10 s for consumers
      And a handler "billing" of "tea_pots.created"
      And the service runs
      When the service is shut down
      And the sink "billing" is not in the next version
      And the service starts again
      And 20 pots are created by 4 tasks
      Then every row owes nothing but "billing/created"
      And 20 deliveries are abandoned
      And every row is marked
      When the service is shut down
      And the sink "billing" is back in one more service
      And the pot "blue" is created
      Then the sink "billing" takes "created" of the pot "blue"
      And no sink takes anything else
