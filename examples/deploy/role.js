// What the user of toa-outbox may do, and nothing else. In the database of the rows, as an administrator:
//
//   mongosh 'mongodb://admin@mongodb/tea?replicaSet=rs0&authSource=admin' --shell role.js
//
// and then, in that shell: db.createUser({ user: 'toa-outbox', pwd: passwordPrompt(), roles: ['toaOutbox'] })

const outboxes = ['tea_pots_outbox'] // those it publishes; to add one, db.updateRole('toaOutbox', …)

// Creates collections and indexes and applies a changed retention. Leave it out where an administrator runs
// `toa-outbox init` instead, and set TOA_OUTBOX_ENSURE=0.
const ensure = ['createCollection', 'createIndex', 'dropIndex', 'collMod']

// true for a service with sinks of its own, and for whoever pauses, removes and replays: toa-outbox sinks, toa-outbox dead.
const sinks = false

const at = (collection, actions) => ({ resource: { db: db.getName(), collection }, actions })

db.createRole({
  role: 'toaOutbox',
  roles: [],
  privileges: [
    // One change stream follows all outbox collections, and MongoDB grants that of a database only together with
    // reading all of it, the entities too.
    at('', ['find', 'changeStream', 'listCollections', 'listIndexes']),
    ...outboxes.map((name) => at(name, ['update', ...ensure])),
    // Where its replicas agree on who publishes what.
    at('outbox_slots', ['insert', 'update']),
    // What is registered and paused, and what failed.
    ...(sinks
      ? [
          at('outbox_sinks', ['insert', 'update', 'remove']),
          ...outboxes.map((name) => at(`${name}_deliveries`, ['insert', 'update', 'remove', ...ensure])),
        ]
      : []),
  ],
})
