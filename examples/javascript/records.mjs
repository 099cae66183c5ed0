// Records of numbered requests, from and to bytes. Numbers of 8 bytes are BigInts.

export const CLIENT_HEADER = "TWPC02"
export const WORKER_HEADER = "TWPW02"

const SEVERAL = 1
const ATTACHED = 2
const PARTIAL = 4
export const VOLATILE = 8
export const RESENT = 16

const BODY_FRAMES_MAX = 1000
const ATTACH_BYTES = 4096 // larger bodies are a frame of their own
const BLOCK_BYTES = 256 << 10 // of records that are sent as one message

class Cursor {
  constructor(data) {
    this.data = data
    this.at = 0
  }

  get done() {
    return this.at === this.data.length
  }

  bytes(count) {
    if (count > this.data.length - this.at) throw new Error("a message is malformed: a record ends too early")
    return this.data.subarray(this.at, (this.at += count))
  }

  number = (size) => this.bytes(size).readUIntBE(0, size)
  big = () => this.bytes(8).readBigUInt64BE()
}

/** The records of a message from a broker, to a client or to a worker. */
export function decode([header, block, ...attachments], expected) {
  if (header.toString() !== expected || !block || attachments.length > 1) throw new Error("is it a broker of numbered requests?")
  const cursor = new Cursor(block)
  const records = []
  while (!cursor.done) {
    const kind = cursor.number(1)
    const read = (expected === CLIENT_HEADER ? TO_CLIENT : TO_WORKER)[kind]
    if (!read) throw new Error(`a message is malformed: a record of the kind ${kind}`)
    records.push(read(cursor, attachments))
  }
  if (attachments.length > 0) throw new Error("a message is malformed: a frame that no record announces")
  return records
}

const TO_CLIENT = {
  0x41: (c) => ({ kind: "welcome", epoch: c.big(), requests: c.number(4), bytes: c.big(), journal: c.number(1) & 1 }),
  0x42: (c, attachments) => {
    const [flags, number, status] = [c.number(1), c.big(), c.number(2)]
    const part = flags & PARTIAL ? c.number(4) : undefined
    return { kind: "reply", number, status, part, body: body(c, flags, SEVERAL | ATTACHED | PARTIAL, attachments) }
  },
  0x43: (c) => ({ kind: "accepted", first: c.big(), count: c.number(4) }),
  0x44: (c) => ({ kind: "refused", number: c.big(), status: c.number(2), millis: c.number(4), reason: c.bytes(c.number(1)) }),
}

const TO_WORKER = {
  0xc1: (c) => ({ kind: "welcome", epoch: c.big() }),
  0xc2: (c, attachments) => {
    const [flags, token, attempt, millis] = [c.number(1), c.bytes(16), c.number(2), c.number(4)]
    return { kind: "request", token, attempt, millis, body: body(c, flags, SEVERAL | ATTACHED, attachments) }
  },
  0xc3: (c) => ({ kind: "cancel", token: c.bytes(16) }),
  0xc4: () => ({ kind: "leave" }),
  0xc5: (c) => ({ kind: "identity", token: c.bytes(16), id: c.bytes(16) }),
}

/** The frames of a body. */
function body(cursor, flags, known, attachments) {
  const length = cursor.number(4)
  let bytes = cursor.bytes(length)
  if (flags & ~known) throw new Error(`a message is malformed: the flags ${flags}`)
  if (flags & ATTACHED) {
    if (length > 0 || attachments.length === 0 || !cursor.done) throw new Error("a message is malformed: a body isn't attached")
    bytes = attachments.pop()
  }
  if (!(flags & SEVERAL)) return [bytes]
  const list = new Cursor(bytes)
  const frames = []
  while (!list.done && frames.length < BODY_FRAMES_MAX) frames.push(list.bytes(list.number(4)))
  if (frames.length === 0 || !list.done) throw new Error("a message is malformed: frames of a body")
  return frames
}

function uint(size, number) {
  const bytes = Buffer.alloc(size)
  if (size === 8) bytes.writeBigUInt64BE(BigInt(number))
  else bytes.writeUIntBE(number, 0, size)
  return bytes
}

const name = (text) => [uint(1, Buffer.byteLength(text)), Buffer.from(text)]
const record = (...pieces) => ({ record: Buffer.concat(pieces) })

/** A record whose second byte are its flags, with a body of one frame or several. */
function withBody(pieces, frames) {
  const head = Buffer.concat(pieces)
  if (frames.length === 1 && frames[0].length > ATTACH_BYTES) {
    head[1] |= ATTACHED
    return { record: Buffer.concat([head, uint(4, 0)]), attachment: frames[0] }
  }
  let bytes = frames[0]
  if (frames.length > 1) {
    head[1] |= SEVERAL
    bytes = Buffer.concat(frames.flatMap((frame) => [uint(4, frame.length), frame]))
  }
  return record(head, uint(4, bytes.length), bytes)
}

/** Begins a client's connection: numbers below the first are settled. */
export const hello = (client, first) => record(uint(1, 0x01), client, uint(8, first))
/** A ttl of 0 ms is the broker's. */
export const request = (number, service, ttl, flags, ...frames) =>
  withBody([uint(1, 0x02), uint(1, flags), uint(8, number), uint(4, ttl), ...name(service)], frames)
/** Lets the broker forget the outcomes of so many numbers. */
export const confirm = (first, count) => record(uint(1, 0x03), uint(8, first), uint(4, count))
export const cancel = (number) => record(uint(1, 0x04), uint(8, number))
/** Begins a worker's connection: it takes as many requests at a time as its credit. */
export const ready = (credit, service) => record(uint(1, 0x81), uint(4, credit), ...name(service))
/** A part that isn't the last has a number. */
export const reply = (token, status, part, ...frames) =>
  part === undefined
    ? withBody([uint(2, 0x8200), token, uint(2, status)], frames)
    : withBody([uint(2, 0x8200 | PARTIAL), token, uint(2, status), uint(4, part)], frames)
export const credit = (count) => record(uint(1, 0x83), uint(4, count))
export const leaving = () => record(uint(1, 0x84))
/** Gives a request back that the worker can't begin. */
export const giveBack = (token, reason) => record(uint(1, 0x85), token, ...name(reason))

/** Sends records, many to a message. */
export class Blocks {
  #records = []
  #bytes = 0

  constructor(link, header) {
    this.link = link
    this.header = header
  }

  async add({ record, attachment }) {
    this.#records.push(record)
    this.#bytes += record.length
    if (attachment) await this.#send(attachment)
    else if (this.#bytes > BLOCK_BYTES) await this.#send()
  }

  async flush() {
    if (this.#bytes > 0) await this.#send()
  }

  async #send(...attachments) {
    const block = Buffer.concat(this.#records)
    this.#records = []
    this.#bytes = 0
    await this.link.send(this.header, block, ...attachments)
  }
}
