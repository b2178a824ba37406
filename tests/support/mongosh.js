#!/usr/bin/env node
// As much of MongoDB's shell as examples/deploy/role.js needs, since that is not installed: mongosh.js URI FILE
//
// Calls on `db` are commands with the name and fields of their argument.

const { readFileSync } = require('node:fs')
const { runInNewContext } = require('node:vm')
const { MongoClient } = require('mongodb')

async function main(uri, file) {
  const client = new MongoClient(uri)
  const database = client.db()
  const commands = []
  const db = {
    getName: () => database.databaseName,
    createRole: ({ role, ...fields }) => commands.push({ createRole: role, ...fields }),
  }
  runInNewContext(readFileSync(file, 'utf8'), { db }, { filename: file })
  for (const command of commands) await database.command(command)
  await client.close()
}

main(process.argv[2], process.argv[3])
