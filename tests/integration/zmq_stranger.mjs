// A program that knows nothing of p2pmsg, on npm's zeromq, for tests of bridges.
//
//   node zmq_stranger.mjs KIND ENDPOINT COUNT
//
// KIND pub or push: connects and sends COUNT messages of two parts, "t" and a number from 0 on.
// KIND sub or pull: connects and prints COUNT messages, a line each, their parts separated by spaces.

import { createRequire } from "node:module";
const require = createRequire(import.meta.url); // unlike import, it looks in NODE_PATH as well
const zmq = require("zeromq");

const [kind, endpoint, count] = process.argv.slice(2);
const kinds = { pub: zmq.XPublisher, push: zmq.Push, sub: zmq.Subscriber, pull: zmq.Pull };
const socket = new kinds[kind]();
socket.connect(endpoint);
if (kind === "pub" || kind === "push") {
  if (kind === "pub") await socket.receive(); // somebody has subscribed
  for (let number = 0; number < Number(count); number++) await socket.send(["t", String(number)]);
} else {
  if (kind === "sub") socket.subscribe("");
  let left = Number(count);
  for await (const parts of socket) {
    console.log(parts.join(" "));
    if (--left === 0) break;
  }
}
socket.close(); // what is left has its time to go, linger being endless
