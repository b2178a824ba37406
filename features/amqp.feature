Feature: AMQP
  What a consumer finds in the broker: where, in which form, and with which properties.

  Background:
    Given pots with the label created

  Rule: Where

    Scenario: The exchange is a durable fanout named after component and label
      When the pot "blue" is created
      Then the row of the pot "blue" is marked
      And "tea.pots.created" is a durable fanout exchange without arguments

    Scenario: The exchange can be named otherwise
      Given the exchange is named "of-{name}-in-{namespace}/{label}"
      And a consumer of each of them
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And "of-pots-in-tea/created" is a durable fanout exchange without arguments

    Scenario: An exchange of another kind keeps only its own messages
      Given pots with the labels created and sync
      And someone has declared "tea.pots.sync" as a direct exchange
      And a consumer of created
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And the row of the pot "blue" owes only amqp/sync
      When the pot "green" is created
      Then "created" arrives for the pot "green"
      When someone deletes the exchange "tea.pots.sync"
      Then every row is marked

  Rule: With which properties

    Scenario: Every message says what it is
      Given a consumer of each of them
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And it has these properties:
        | message_id    | the id of the row of the pot "blue"  |
        | type          | created                              |
        | app_id        | tea.pots                             |
        | timestamp     | the second in which it was written   |
        | delivery_mode | 2                                    |
        | content_type  | application/json                     |
        | headers       | {}                                   |

    Scenario Outline: A row is known by its id as text, and dated by it or by when it was due
      Given a consumer of each of them
      And a dead writer's row of the pot "blue", with "_id" as <id>, due since second 1700000000
      When the service starts
      Then "created" arrives for the pot "blue"
      And it has these properties:
        | message_id | <message id> |
        | timestamp  | <timestamp>  |

      Examples:
        | id                                                  | message id                           | timestamp  |
        | { "$uuid": "01900000-0000-7000-8000-000000000000" } | 01900000-0000-7000-8000-000000000000 | 1717986918 |
        | { "$oid": "65f0a1b2c3d4e5f6a7b8c9d0" }              | 65f0a1b2c3d4e5f6a7b8c9d0             | 1710268850 |
        | "0190000000007000800000000000abcd"                  | 0190000000007000800000000000abcd     | 1717986918 |
        | "blue-1"                                            | blue-1                               | 1700000000 |

    Scenario: Headers of the user's own
      Given a header "tenant" of "the tea house"
      And a consumer of each of them
      When the pot "blue" is created
      Then "created" arrives for the pot "blue"
      And it has these properties:
        | headers | { "tenant": "the tea house" } |

  Rule: In which form

    Scenario: JSON is plain, for consumers that know nothing of BSON
      Given a consumer of each of them
      When the pot "blue" is created with these fields:
        | field    | BSON                                                              | JSON                                   |
        | text     | "Ceylon"                                                          | "Ceylon"                               |
        | yes      | true                                                              | true                                   |
        | nothing  | null                                                              | null                                   |
        | int32    | { "$numberInt": "7" }                                             | 7                                      |
        | int64    | { "$numberLong": "9223372036854775807" }                          | 9223372036854775807                    |
        | double   | { "$numberDouble": "0.5" }                                        | 0.5                                    |
        | infinite | { "$numberDouble": "Infinity" }                                   | null                                   |
        | price    | { "$numberDecimal": "9.99" }                                      | "9.99"                                 |
        | object   | { "$oid": "65f0a1b2c3d4e5f6a7b8c9d0" }                            | "65f0a1b2c3d4e5f6a7b8c9d0"             |
        | uuid     | { "$uuid": "0190163d-8694-739b-8f0c-1d3a9d2b6c11" }               | "0190163d-8694-739b-8f0c-1d3a9d2b6c11" |
        | leaves   | { "$binary": { "base64": "AP8=", "subType": "00" } }              | "AP8="                                 |
        | picked   | { "$date": { "$numberLong": "1700000000123" } }                   | "2023-11-14T22:13:20.123Z"             |
        | far      | { "$date": { "$numberLong": "9223372036854775807" } }             | 9223372036854775807                    |
        | stamp    | { "$timestamp": { "t": 7, "i": 8 } }                              | { "t": 7, "i": 8 }                     |
        | pattern  | { "$regularExpression": { "pattern": "^tea", "options": "i" } }   | "/^tea/i"                              |
        | symbol   | { "$symbol": "oolong" }                                           | "oolong"                               |
        | code     | { "$code": "pour()" }                                             | "pour()"                               |
        | least    | { "$minKey": 1 }                                                  | "MinKey"                               |
        | most     | { "$maxKey": 1 }                                                  | "MaxKey"                               |
        | list     | [1, [{ "$oid": "65f0a1b2c3d4e5f6a7b8c9d0" }]]                     | [1, ["65f0a1b2c3d4e5f6a7b8c9d0"]]      |
        | nested   | { "deep": { "picked": { "$date": { "$numberLong": "0" } } } }     | { "deep": { "picked": "1970-01-01T00:00:00Z" } } |
      Then "created" arrives for the pot "blue" with that JSON

    Scenario Outline: <encoding>
      Given bodies in <encoding>
      And a consumer of each of them
      When the pot "blue" is created with { "sold": { "$numberLong": "12" }, "picked": { "$date": { "$numberLong": "1700000000123" } } }
      Then "created" arrives as <body>, which is <content type>

      Examples:
        | encoding                | content type        | body |
        | JSON                    | application/json    | { "_id": "blue", "sold": 12, "picked": "2023-11-14T22:13:20.123Z", "_version": 1 } |
        | relaxed Extended JSON   | application/json    | { "_id": "blue", "sold": 12, "picked": { "$date": "2023-11-14T22:13:20.123Z" }, "_version": 1 } |
        | canonical Extended JSON | application/json    | { "_id": "blue", "sold": { "$numberLong": "12" }, "picked": { "$date": { "$numberLong": "1700000000123" } }, "_version": { "$numberLong": "1" } } |
        | MessagePack             | application/msgpack | { "_id": "blue", "sold": 12, "picked": "2023-11-14T22:13:20.123Z", "_version": 1 } |
        | BSON                    | application/bson    | { "_id": "blue", "sold": { "$numberLong": "12" }, "picked": { "$date": { "$numberLong": "1700000000123" } }, "_version": { "$numberLong": "1" } } |

  Rule: A message that no queue takes

    Scenario: It is accepted, as a fanout without a queue does
      When the pot "blue" is created
      Then the row of the pot "blue" is marked

    Scenario: It waits for one where messages are mandatory
      Given messages are mandatory
      When the pot "blue" is created
      Then the pump finds the row of the pot "blue" and cannot send it
      And it is not marked
      When a consumer of created comes
      Then "created" arrives for the pot "blue"
      And the row of the pot "blue" is marked
      And nothing else arrives
