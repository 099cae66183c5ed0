// node call.mjs ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES sends a numbered request for each line, and
// prints NUMBER STATUS REPLY as the replies come. When a broker is lost, what has no outcome goes to the next, under the same numbers.
import { randomBytes } from "node:crypto"
import { readFileSync } from "node:fs"
import { keep, main } from "./link.mjs"
import { Blocks, CLIENT_HEADER, RESENT, confirm, decode, hello, request } from "./records.mjs"

const AHEAD = 1000 // requests that may wait for their outcome

class Caller {
  failed = false
  #id = randomBytes(16)
  #first = 0 // all before it are settled

  constructor(service, lines) {
    this.service = service
    // due: when to send it, Infinity once it is sent. The first has number 1.
    this.requests = lines.map((line) => ({ body: Buffer.from(line), due: 0, resent: false, settled: false, parts: [] }))
  }

  /** Goes on until every request has its outcome. */
  async session(link) {
    for (const request of this.requests) {
      request.resent ||= request.due === Infinity
      request.due = 0
      request.parts = []
    }
    const blocks = new Blocks(link, CLIENT_HEADER)
    await blocks.add(hello(this.#id, this.#first + 1))
    while (this.#first < this.requests.length) {
      const next = await this.#send(blocks)
      const message = await link.receive(next === Infinity ? next : Math.max(next - Date.now(), 0))
      // Without a message one is due again.
      for (const record of message ? decode(message, CLIENT_HEADER) : []) await this.#take(record, blocks)
      while (this.requests[this.#first]?.settled) this.#first++
    }
    await blocks.flush()
  }

  /** Sends what is due, and returns when something else is. */
  async #send(blocks) {
    const now = Date.now()
    let next = Infinity
    for (let n = this.#first; n < Math.min(this.#first + AHEAD, this.requests.length); n++) {
      const { settled, due, resent, body } = this.requests[n]
      if (settled) continue
      if (due > now) {
        next = Math.min(next, due)
        continue
      }
      this.requests[n].due = Infinity
      await blocks.add(request(n + 1, this.service, 0, resent ? RESENT : 0, body))
    }
    await blocks.flush()
    return next
  }

  async #take({ kind, number, status, part, body, millis, reason }, blocks) {
    if (kind !== "reply" && kind !== "refused") return
    const request = this.requests[Number(number) - 1]
    if (!request || request.settled) return
    if (part !== undefined) {
      request.parts.push(...body)
    } else if (kind === "refused" && millis > 0) {
      request.due = Date.now() + millis
    } else {
      if (status === 206) status = 410 // its parts were sent over an earlier connection
      this.failed ||= status !== 200
      console.log(`${number} ${status} ${Buffer.concat([...request.parts, ...(body ?? [reason])])}`)
      request.settled = true
      request.parts = []
      await blocks.add(confirm(number, 1))
    }
  }
}

await main("call ENDPOINT[,ENDPOINT...] SERVICE", 2, async (endpoints, service, keys) => {
  const lines = readFileSync(0, "utf8").split("\n")
  if (lines.at(-1) === "") lines.pop()
  const caller = new Caller(service, lines)
  await keep(endpoints.split(","), keys, (link) => caller.session(link))
  if (caller.failed) throw new Error("some requests failed")
})
