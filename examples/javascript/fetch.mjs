// node fetch.mjs ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE] fetches a file from `tow serve`, ten pieces ahead. What it has
// is in COPY.part, and is continued by the next connection, or the next run.
import { open, rename } from "node:fs/promises"
import { keep, main } from "./link.mjs"

const PIECE_BYTES = 250_000
const AHEAD = 10

async function fetch(link, path, part) {
  let next = (await part.stat()).size
  const ask = async () => {
    await link.send("fetch", path, String(next), String(PIECE_BYTES))
    next += PIECE_BYTES
  }
  for (let n = 0; n < AHEAD; n++) await ask()
  for (;;) {
    const [piece, reason] = await link.receive()
    if (reason) throw new Error(`${path}: ${reason}`) // after the word "error"
    await part.appendFile(piece)
    if (piece.length < PIECE_BYTES) return // the end of the file
    await ask()
  }
}

await main("fetch ENDPOINT PATH COPY", 3, async (endpoint, path, copy, keys) => {
  const part = await open(`${copy}.part`, "a")
  await keep([endpoint], keys, (link) => fetch(link, path, part))
  await part.close()
  await rename(`${copy}.part`, copy)
})
