#!/usr/bin/env node
// The usual Node client: amqplib_consumer.js URI EXCHANGE QUEUE COUNT [SECONDS]
//
// Says `ready` once messages cannot be missed, then {id, type, body} a line.

const { connect } = require('amqplib')
const { uri, exchange, group: queue, tell, done } = require('./tally')

async function main() {
  const connection = await connect(uri)
  const channel = await connection.createChannel()
  await channel.assertExchange(exchange, 'fanout', { durable: true })
  await channel.assertQueue(queue, { durable: true })
  await channel.bindQueue(queue, exchange, '')
  await channel.consume(queue, (message) => {
    tell(message.properties, JSON.parse(message.content))
    channel.ack(message)
  })
  console.log('ready')
  await done
  await channel.close() // the last acknowledgements go out with it
  await connection.close()
  process.exit()
}

main()
