#!/usr/bin/env node
// A service whose changes reach AMQP by way of toa-outbox: node writer.js URI COUNT [RATE]
//
// Makes COUNT tea pots, RATE of them a second if given, then boils the first. The database is the one that
// the URI names, as in mongodb://localhost/tea?replicaSet=rs0.

const { randomBytes, randomInt } = require('node:crypto')
const { setTimeout } = require('node:timers/promises')
const { Long, MongoClient, UUID } = require('mongodb')

const NAMESPACE_EXISTS = 48

/** What toa-outbox publishes: the record before the change, null for a new one, and after it. */
function row(origin, state, input) {
  return {
    _id: uuid7(), // binary subtype 4; becomes the message's id
    lane: randomInt(128), // which replica of toa-outbox looks after it, and nothing else
    published: false,
    pending: Long.fromNumber(Date.now()), // due now, since nobody but toa-outbox is going to publish it
    event: { origin, state, trailers: {}, input },
  }
}

/** Milliseconds first, then chance: ids in the order of time keep the index on them small and warm. */
function uuid7() {
  const bytes = randomBytes(16)
  bytes.writeUIntBE(Date.now(), 0, 6)
  bytes[6] = (bytes[6] & 0x0f) | 0x70 // the version
  bytes[8] = (bytes[8] & 0x3f) | 0x80 // the variant
  return new UUID(bytes)
}

async function create(session, pots, rows, pot) {
  await pots.insertOne(pot, { session }) // gives it its _id
  await rows.insertOne(row(null, pot, { temperature: pot.temperature }), { session })
}

async function boil(session, pots, rows, { _id }) {
  // Whoever changes the pot in the meantime makes the transaction fail, and it is run again.
  const origin = await pots.findOne({ _id }, { session })
  const state = { ...origin, temperature: 100, _version: origin._version + 1 }
  await pots.replaceOne({ _id }, state, { session })
  await rows.insertOne(row(origin, state, 'boil'), { session })
}

/** Before the first transaction: within one, others that create it too would make it fail. */
async function ensure(database, name) {
  await database.createCollection(name).catch((error) => {
    if (error.code !== NAMESPACE_EXISTS) throw error
  })
  return database.collection(name)
}

async function main(uri, count, rate) {
  const client = new MongoClient(uri)
  const database = client.db()
  const pots = await ensure(database, 'tea_pots')
  const rows = await ensure(database, 'tea_pots_outbox')

  // toa-outbox is shown a row once a majority has it: at once when the commit waits for that, else some
  // 50 ms later.
  const majority = { writeConcern: { w: 'majority' } }
  const commit = (change, pot) =>
    client.withSession((session) => session.withTransaction(() => change(session, pots, rows, pot), majority))

  const start = Date.now()
  let first
  for (let number = 0; number < count; number++) {
    if (rate) await setTimeout(start + (number * 1000) / rate - Date.now())
    const pot = { number, temperature: 20, _version: 1 }
    await commit(create, pot)
    first ??= pot
  }
  if (first) await commit(boil, first)
  await client.close()
}

main(process.argv[2], ...process.argv.slice(3).map(Number))
