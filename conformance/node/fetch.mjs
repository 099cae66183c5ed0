// Fetches a file from `tow serve` with zeromq.js: ENDPOINT PATH COPY, and for CURVE SERVER_KEY PUBLIC_KEY SECRET_KEY; ten requests ahead.
import { createWriteStream } from "node:fs"
import { once } from "node:events"
import { Dealer } from "zeromq"

const PIECE_BYTES = 250_000
const AHEAD = 10

const [endpoint, path, target, curveServerKey, curvePublicKey, curveSecretKey] = process.argv.slice(2)
const keys = curveServerKey ? { curveServerKey, curvePublicKey, curveSecretKey } : {}
const dealer = new Dealer({ receiveTimeout: 30_000, linger: 0, ...keys })
dealer.connect(endpoint)
const ask = (index) => dealer.send(["fetch", path, String(index * PIECE_BYTES), String(PIECE_BYTES)])

let asked = 0
while (asked < AHEAD) await ask(asked++)
const copy = createWriteStream(target)
for (;;) {
  const [piece, ...rest] = await dealer.receive()
  if (rest.length > 0) throw new Error(`${piece}: ${rest.join(" ")}`)
  copy.write(piece)
  if (piece.length < PIECE_BYTES) break
  await ask(asked++)
}
copy.end()
await once(copy, "finish")
dealer.close()
