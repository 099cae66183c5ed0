// node follow.mjs ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE] keeps a copy of PATH ("" is all) of `tow serve --watch`:
// first what is there, then each change. Links are left out.
import { mkdirSync, openSync, closeSync, renameSync, rmdirSync, rmSync, statSync, writeSync } from "node:fs"
import { dirname, join } from "node:path"
import { keep, main } from "./link.mjs"

const CREDIT = 1_000_000 // bytes that the server may have in flight

class Copy {
  cursor = "beginning"
  #have = new Set() // what this run has put into the directory
  #stale = new Set() // what hasn't come again since the full state began

  constructor(directory) {
    this.directory = directory
  }

  async follow(link, path) {
    await link.send("follow", path, this.cursor)
    await link.send("credit", String(CREDIT))
    for (;;) {
      const message = await link.receive()
      if (message.length === 2) throw new Error(`${path}: ${message[1]}`) // after the word "error"
      if (message.length !== 6) throw new Error(`a message of ${message.length} frames: is it tow serve?`)
      const [kind, name, cursor, size, offset, body] = message
      if (this.#change(String(kind), String(name), Number(size), Number(offset), body)) this.cursor = String(cursor)
      await link.send("credit", String(Math.max(body.length, 256)))
    }
  }

  /** Carries a message out; true if its change is complete. */
  #change(kind, name, size, offset, body) {
    if (kind === "full") {
      this.#stale = new Set(this.#have)
      return false
    }
    if (kind === "live") {
      // What is in a directory goes before it.
      for (const stale of [...this.#stale].sort().reverse()) this.#remove(stale)
      console.log("up to date")
      return true
    }
    // Never trust that it stays inside.
    if (name.split("/").some((word) => ["", ".", ".."].includes(word))) throw new Error(`the server sent the path ${name}`)
    const place = join(this.directory, name)
    if (kind === "file" && !this.#write(place, size, offset, body)) return false
    if (kind === "dir") mkdirSync(place, { recursive: true })
    if (kind === "gone") this.#remove(name)
    if (kind === "file" || kind === "dir") {
      this.#have.add(name)
      this.#stale.delete(name)
    }
    console.log(kind, name)
    return true
  }

  /** Writes a piece; true if the file is complete. */
  #write(place, size, offset, body) {
    const part = `${place}.part`
    if (offset === 0) mkdirSync(dirname(place), { recursive: true })
    const file = openSync(part, offset === 0 ? "w" : "r+")
    writeSync(file, body, 0, body.length, offset)
    closeSync(file)
    if (offset + body.length < size) return false
    renameSync(part, place)
    return true
  }

  /** Takes away only what this run has put there, and no directory that has something else. */
  #remove(name) {
    this.#stale.delete(name)
    if (!this.#have.delete(name)) return
    const place = join(this.directory, name)
    try {
      if (statSync(place).isDirectory()) rmdirSync(place)
      else rmSync(place)
    } catch (error) {
      console.log(`${name} stays: ${error.message}`)
    }
  }
}

await main("follow ENDPOINT PATH DIRECTORY", 3, (endpoint, path, directory, keys) => {
  const copy = new Copy(directory)
  return keep([endpoint], keys, (link) => copy.follow(link, path))
})
