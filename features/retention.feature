Feature: Retention
  Published rows are kept for a while and then expire; a row that never left is never deleted.

  Background:
    Given pots with the label created
    And a consumer of each of them

  Scenario: A published row expires, an unpublished one never does
    Given a retention of 1 s
    And a dead writer's row of the pot "late", due in 3600000 ms
    And a dead writer's row of the pot "broken", with "event" as null
    And a dead writer's row of the pot "green"
    When the service starts
    Then "created" arrives for the pot "green"
    And the row of the pot "green" is gone
    And the row of the pot "late" is left as it was
    And the row of the pot "broken" is left as it was

  Scenario: A row that is owed in part does not expire
    Given a retention of 1 s
    And a label "priced" whose payload fails
    And a dead writer's row of the pot "green", with "outstanding" as ["amqp/created"]
    When the pot "blue" is created
    Then the row of the pot "blue" owes only amqp/priced
    And the row of the pot "green" is gone
    And the row of the pot "blue" owes only amqp/priced

  Scenario: Without a retention rows are kept for ever
    Given a retention of 0 s
    When the pot "blue" is created
    Then the row of the pot "blue" is marked
    And rows never expire

  Scenario Outline: A retention changed from <before> s to <after> s is applied at the next start
    Given a retention of <before> s
    And the service runs
    When the service is shut down
    And the service starts again with a retention of <after> s
    Then rows <expire>

    Examples:
      | before | after | expire                    |
      | 86400  | 60    | expire 60 s after leaving |
      | 60     | 86400 | expire 86400 s after leaving |
      | 0      | 60    | expire 60 s after leaving |
      | 60     | 0     | never expire              |
      | 0      | 0     | never expire              |
