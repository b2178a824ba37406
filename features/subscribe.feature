Feature: Subscribe
  A process hears what is committed as it comes, and nobody waits for who listens.

  Background:
    Given pots with the labels created, updated and deleted

  Scenario: From now on
    When the pot "white" is created
    And a subscription to "tea_pots.*" begins
    And the pot "blue" is created
    And the pot "blue" is transited to { "material": "clay" }
    Then it hears "created" of the pot "blue"
    And it hears "updated" of the pot "blue"

  Scenario: Only what was asked for
    When a subscription to "tea_pots.updated" begins
    And the pot "blue" is created
    And the pot "blue" is transited to { "material": "clay" }
    And the pot "green" is created
    And the pot "green" is transited to { "material": "clay" }
    Then it hears "updated" of the pot "blue"
    And it hears "updated" of the pot "green"

  Scenario: Whoever wrote it
    When a subscription to "*.created" begins
    And a dead writer leaves 1 row
    And the pot "blue" is created
    Then it hears a message of another writer
    And it hears "created" of the pot "blue"

  Scenario: Only what is owed
    When a subscription to "tea_pots.*" begins
    And an archive is restored with the published pot "old"
    And a row comes of the pot "partial", which owes "amqp/updated" alone
    And the pot "blue" is created
    Then it hears "created" of the pot "blue"

  Scenario: A broker that is away keeps nobody from hearing
    Given the broker is away
    When a subscription to "tea_pots.*" begins
    And the pot "blue" is created
    Then it hears "created" of the pot "blue"

  Scenario: Who does not listen is told how much he missed
    When a subscription to "tea_pots.*" begins
    And a subscription to "tea_pots.*" begins
    And a dead writer leaves 1500 rows
    Then the other subscription hears of 1500 messages
    And it hears 1024 messages, and that it missed 476
    And every row is marked

  Scenario: Who begins after all others have ended
    When a subscription to "tea_pots.*" begins
    And the last subscription ends
    And the pot "white" is created
    And a subscription to "tea_pots.*" begins
    And the pot "blue" is created
    Then it hears "created" of the pot "blue"

  Scenario: A change stream that breaks
    When a subscription to "tea_pots.*" begins
    And the database is dropped
    Then it hears of a gap
    When the pot "blue" is created
    Then it hears "created" of the pot "blue"

  Scenario: A shutdown ends it
    When a subscription to "tea_pots.*" begins
    And the service is shut down
    Then it hears that it is over

  Scenario: A pattern that fits no label
    When a subscription to "tea_pots.creatd" begins in vain
    Then the caller is told: expected one that fits a label
