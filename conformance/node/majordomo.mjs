// An MDP/0.1 client and worker with zeromq.js, from the tables of the protocol: request|work ENDPOINT SERVICE.
import { Dealer, Request } from "zeromq"

const REQUESTS = 50

// Sends requests one after another and expects each back as it was.
async function request(endpoint, service) {
  const socket = new Request({ receiveTimeout: 30_000, linger: 0 })
  socket.connect(endpoint)
  for (let index = 0; index < REQUESTS; index++) {
    const body = `request ${index}`
    const sent = ["MDPC01", service, body, "", body.repeat(index * index)]
    await socket.send(sent)
    const reply = (await socket.receive()).map(String)
    if (JSON.stringify(reply) !== JSON.stringify(sent)) throw new Error(`came back as ${reply}`)
  }
  socket.close()
}

// Echoes what it is asked for, until it is killed.
async function work(endpoint, service) {
  const socket = new Dealer({ linger: 0 })
  socket.connect(endpoint)
  await socket.send(["", "MDPW01", "\x01", service])
  for await (const [, , command, ...rest] of socket) {
    if (command[0] === 2) await socket.send(["", "MDPW01", "\x03", ...rest])
    else if (command[0] === 4) await socket.send(["", "MDPW01", "\x04"])
    else throw new Error(`command ${command[0]}`)
  }
}

const [end, endpoint, service] = process.argv.slice(2)
await (end === "work" ? work : request)(endpoint, service)
