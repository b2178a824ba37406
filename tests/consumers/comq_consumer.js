#!/usr/bin/env node
// Toa's own client: comq_consumer.js URI EXCHANGE GROUP COUNT [SECONDS]
//
// Says `ready` once messages cannot be missed, then {id, type, body} a line, the body as the client decoded it.

const { connect } = require('comq')
const { uri, exchange, group, tell, done } = require('./tally')

async function main() {
  const io = await connect(uri)
  await io.consume(exchange, group, (body, properties) => tell(properties, body))
  console.log('ready')
  await done
  await io.close() // not before what it was given last is acknowledged
  process.exit()
}

main()
