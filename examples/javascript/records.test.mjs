// The records against testing/vectors/numbered.txt: lines of KIND BLOCK ATTACHED = WHAT IT SAYS. VECTORS names another file.
import assert from "node:assert"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import * as records from "./records.mjs"

const file = process.env.VECTORS ?? new URL("../../testing/vectors/numbered.txt", import.meta.url)
const vectors = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => line.split(" = "))

/** Bytes of hex, or of a byte and how many of it there are. */
function unhex(text) {
  const [hex, count] = text.replace(/^-$/, "").split("*")
  const bytes = Buffer.from(hex, "hex")
  return count ? Buffer.alloc(Number(count), bytes) : bytes
}

function hexed(bytes) {
  const same = bytes.length > 100 && bytes.every((byte) => byte === bytes[0])
  return same ? `${bytes.toString("hex", 0, 1)}*${bytes.length}` : bytes.toString("hex")
}

const shown = (frames) => frames.map(hexed).join(",")

const SAYS = {
  "to-client": {
    welcome: (r) => `welcome ${r.epoch} ${r.requests} ${r.bytes} ${r.journal}`,
    reply: (r) => `reply ${r.number} ${r.status} ${r.part ?? "-"} ${shown(r.body)}`,
    accepted: (r) => `accepted ${r.first} ${r.count}`,
    refused: (r) => `refused ${r.number} ${r.status} ${r.millis} ${hexed(r.reason)}`,
  },
  "to-worker": {
    welcome: (r) => `welcome ${r.epoch}`,
    request: (r) => `request ${hexed(r.token)} ${r.attempt} ${r.millis} ${shown(r.body)}`,
    cancel: (r) => `cancel ${hexed(r.token)}`,
    identity: (r) => `identity ${hexed(r.token)} ${hexed(r.id)}`,
    leave: () => "leave",
  },
}

const MAKE = {
  hello: (id, first) => records.hello(unhex(id), first),
  request: (number, ttl, volatile, resent, service, body) => {
    const flags = (volatile === "1" ? records.VOLATILE : 0) | (resent === "1" ? records.RESENT : 0)
    return records.request(number, unhex(service).toString(), Number(ttl), flags, ...body.split(",").map(unhex))
  },
  confirm: (first, count) => records.confirm(first, Number(count)),
  cancel: (number) => records.cancel(number),
  ready: (credit, service) => records.ready(Number(credit), unhex(service).toString()),
  reply: (token, status, part, body) =>
    records.reply(unhex(token), Number(status), part === "-" ? undefined : Number(part), ...body.split(",").map(unhex)),
  credit: (count) => records.credit(Number(count)),
  leaving: () => records.leaving(),
  return: (token, reason) => records.giveBack(unhex(token), unhex(reason).toString()),
}

function decoded(kind, frames) {
  const header = kind === "to-client" ? records.CLIENT_HEADER : records.WORKER_HEADER
  try {
    return records.decode([header, ...frames], header).map((record) => SAYS[kind][record.kind](record)).join("; ")
  } catch (error) {
    assert.match(error.message, /malformed/)
    return "malformed"
  }
}

test("records are as in the vectors", () => {
  assert(vectors.length > 100)
  for (const [message, says] of vectors) {
    const [kind, block, attached] = message.split(" ")
    const frames = attached === "-" ? [unhex(block)] : [unhex(block), unhex(attached)]
    if (kind.startsWith("to-")) {
      assert.strictEqual(decoded(kind, frames), says, message)
    } else {
      const [name, ...words] = says.split(" ")
      const { record, attachment } = MAKE[name](...words)
      assert.deepStrictEqual(attachment ? [record, attachment] : [record], frames, says)
    }
  }
})
