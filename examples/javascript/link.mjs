// Connections to Towpath's servers.
import { readFileSync } from "node:fs"
import { setTimeout as after } from "node:timers/promises"
import { Dealer } from "zeromq"

const MESSAGE_BYTES_MAX = 64 << 20
const HEARTBEAT = 2_000 // ms
const SILENCE = 8_000 // after which a server that answers no heartbeat counts as lost
const PAUSE = 300 // between connections
const LINGER = 1_000

/** A connection that has ended, or that couldn't be made. */
export class Lost extends Error {
  message = "the connection is lost"
}

/** Options of CURVE from files of `tow key`: the client's secret key and the server's public key. No files are no keys. */
export function readKeys(files) {
  if (files.length === 0) return {}
  if (files.length !== 2) throw new Error("CURVE needs two files: the client's secret key and the server's public key")
  const field = (file, name) => {
    const found = readFileSync(file, "utf8").match(new RegExp(`^\\s*${name}\\s*=\\s*"(.{40})"`, "m"))
    if (!found) throw new Error(`${file} has no ${name}`)
    return found[1]
  }
  const [own, server] = files
  return {
    curvePublicKey: field(own, "public-key"),
    curveSecretKey: field(own, "secret-key"),
    curveServerKey: field(server, "public-key"),
  }
}

/** One connection. libzmq would make the next one without a word, but what was asked for must be asked for again. */
export class Link {
  #dealer
  #failed
  #message

  constructor(endpoint, keys) {
    this.endpoint = endpoint
    this.#dealer = new Dealer({
      ...keys,
      linger: 0,
      sendHighWaterMark: 0, // how much is in flight is up to the programs
      sendTimeout: 0,
      maxMessageSize: MESSAGE_BYTES_MAX,
      reconnectInterval: -1,
      heartbeatInterval: HEARTBEAT,
      heartbeatTimeout: SILENCE,
    })
    const { events } = this.#dealer
    this.#failed = new Promise((_, reject) => {
      events.on("disconnect", () => reject(new Lost()))
      events.on("close", () => reject(new Lost()))
      const refused = (why) => ({ error }) => reject(new Error(`${endpoint} refuses us (${error?.code}): ${why}`))
      events.on("handshake:error:auth", refused("the client's key, or the server's, isn't the right one"))
      events.on("handshake:error:protocol", refused("only one side has keys, or it isn't Towpath"))
    })
    this.#failed.catch(() => {})
    this.#dealer.connect(endpoint)
  }

  /** Queues a message. */
  async send(...frames) {
    try {
      await this.#dealer.send(frames)
    } catch (error) {
      // Without a limit to the queue there is only no place for it when there is no connection.
      throw error.code === "EAGAIN" ? new Lost() : error
    }
  }

  /** The next message; undefined if none comes in so many ms. */
  async receive(timeout = Infinity) {
    this.#message ??= this.#dealer.receive()
    const timer = new AbortController()
    const racers = [this.#message, this.#failed]
    if (timeout !== Infinity) racers.push(after(timeout, undefined, { signal: timer.signal }))
    try {
      const message = await Promise.race(racers)
      if (message) this.#message = undefined
      return message
    } finally {
      timer.abort()
    }
  }

  close(linger) {
    this.#message?.catch(() => {})
    this.#dealer.linger = linger
    this.#dealer.close()
  }
}

/** Runs a session over a connection, and again over the next when that is lost: to the next endpoint, in turn. */
export async function keep(endpoints, keys, session) {
  for (let turn = 0; ; turn++) {
    const link = new Link(endpoints[turn % endpoints.length], keys)
    let linger = 0
    try {
      await session(link)
      linger = LINGER
      return
    } catch (error) {
      if (!(error instanceof Lost)) throw error
      console.error(`${link.endpoint}: ${error.message}`)
    } finally {
      link.close(linger)
    }
    await after(PAUSE)
  }
}

/** Runs a program with its arguments, of which it needs so many, and up to two key files. */
export async function main(usage, needed, program) {
  const words = process.argv.slice(2)
  try {
    if (words.length < needed) throw new Error(`usage: ${usage} [SECRET-KEY-FILE SERVER-KEY-FILE]`)
    await program(...words.slice(0, needed), readKeys(words.slice(needed)))
  } catch (error) {
    console.error(error.message)
    process.exitCode = 1
  }
}
