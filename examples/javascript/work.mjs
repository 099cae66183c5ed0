// node work.mjs ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] is a worker that takes ten requests at a time and replies in
// capitals. Requests that it has when it ends go to another worker.
import { keep, main } from "./link.mjs"
import { Blocks, WORKER_HEADER, decode, ready, reply } from "./records.mjs"

const CREDIT = 10 // requests that the broker may give at a time

const handle = (body) => Buffer.from(body.toString().toUpperCase())

async function work(link, service) {
  const blocks = new Blocks(link, WORKER_HEADER)
  await blocks.add(ready(CREDIT, service))
  for (;;) {
    await blocks.flush()
    for (const { kind, token, body } of decode(await link.receive(), WORKER_HEADER)) {
      if (kind === "request") await blocks.add(reply(token, 200, undefined, handle(Buffer.concat(body))))
    }
  }
}

await main("work ENDPOINT SERVICE", 2, (endpoint, service, keys) => keep([endpoint], keys, (link) => work(link, service)))
