Feature: Shutdown
  A service that stops waits for what is on its way, says what it left, and loses nothing.

  Background:
    Given pots with the label created
    And a consumer of each of them

  Scenario: What is on its way leaves and is marked
    When 200 pots are created by 8 tasks
    And the service is shut down
    Then nothing was left
    And every row has been marked
    And "created" has arrived exactly once for each of the 200 pots

  Scenario: What the broker could not take is reported, and leaves after the next start
    Given the service runs
    And the broker is away
    When 3 pots are created by 1 task
    And the service is shut down
    Then it was left that 3 rows had not been sent
    When the broker is back
    And the service starts again
    Then "created" arrives exactly once for each of the 3 pots

  Scenario: A broker that does not answer holds a shutdown up no longer than its grace
    Given a grace of 500 ms
    When the pot "first" is created
    Then "created" arrives for the pot "first"
    When the broker has gone quiet
    And 3 pots are created by 1 task
    And the service is shut down
    Then it was left that 3 rows may or may not have been sent
    When the broker is back
    And the service starts again
    Then "created" arrives at least once for each of the 3 pots
    And every row is marked

  Scenario: What is written after the shutdown is published by whoever comes next
    Given the service runs
    When the service is shut down
    And the pot "blue" is created
    Then nothing has arrived
    When the service starts again
    Then "created" arrives for the pot "blue"

  Scenario: A shutdown that is asked for twice says the same
    Given a grace of 500 ms
    When the pot "first" is created
    Then "created" arrives for the pot "first"
    When the broker has gone quiet
    And 3 pots are created by 1 task
    And the service is shut down
    And the service is shut down
    Then it was left that 3 rows may or may not have been sent

  Scenario: A service that is dropped without a shutdown loses nothing
    When 200 pots are created by 8 tasks
    And the service is dropped
    And the service starts again
    Then "created" arrives at least once for each of the 200 pots
    And every row is marked

  Scenario: A label that could not be rendered is rendered by the next start
    Given a label "priced" whose payload fails
    When the pot "blue" is created
    Then "created" arrives for the pot "blue"
    And the row of the pot "blue" owes only amqp/priced
    When the service is shut down
    Then it was left that 1 row had not been sent
    When "priced" can be rendered
    And the service starts again
    Then "priced" arrives for the pot "blue"
    And the row of the pot "blue" is marked
    And nothing else arrives
