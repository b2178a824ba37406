// What the Node consumers have in common: the words on standard output and when it is enough.

const [uri, exchange, group, count, seconds = 60] = process.argv.slice(2)

setTimeout(() => {
  console.error(`${seen.size} of ${count} messages from ${exchange} within ${seconds} s`)
  process.exit(1)
}, seconds * 1000)

const seen = new Set()
let enough
const done = new Promise((resolve) => (enough = resolve))

/** One line a message, repeated ones too; ends once COUNT different ones have come. */
function tell({ messageId: id, type }, body) {
  console.log(JSON.stringify({ id, type, body }))
  if (seen.add(id).size >= count) enough()
}

module.exports = { uri, exchange, group, tell, done }
