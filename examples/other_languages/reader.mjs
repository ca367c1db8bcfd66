// A p2pmsg subscriber in JavaScript, written from p2pmsg/PROTOCOL.md: prints each message once and in order.
//
//   npm install zeromq @msgpack/msgpack
//   node reader.mjs tcp://127.0.0.1:5556 TOPIC [COUNT]
//
// One line a message: its sequence and its value in JSON. It begins with the earliest message that the publisher
// keeps, asks again for what is missing (NACK), prints `lost START STOP REASON` where that cannot be had, and ends
// after COUNT messages. Standard error says what it does.

import { createRequire } from "node:module";
import { randomBytes } from "node:crypto";
const require = createRequire(import.meta.url); // unlike import, it looks in NODE_PATH as well
const zmq = require("zeromq");
const { encode, decode } = require("@msgpack/msgpack");

const [DATA, HEARTBEAT, WELCOME, PROBE, ECHO, JOINED, NACK, REFUSED, LEAVE] = [1, 2, 16, 17, 18, 19, 20, 21, 24];
const CLOSING = 1, HEADER_BYTES = 38, RANGES_MAX = 1024, HELD_MAX = 100_000;
const MSGPACK = { useBigInt64: true };

const [endpoint, topic, limit = "Infinity"] = process.argv.slice(2);
if (!topic) {
  console.error("usage: node reader.mjs ENDPOINT TOPIC [COUNT]");
  process.exit(2);
}
let left = Number(limit);
console.error(`waits for ${endpoint}`);

const data = new zmq.Subscriber({ receiveHighWaterMark: 10_000 });
const recovery = new zmq.Dealer({ linger: 500 });
// @msgpack/msgpack packs a number above 2^32 as a float, and a BigInt as an integer.
const me = [randomBytes(8).readBigUInt64BE(), "reader.mjs"];
const probe = randomBytes(8).readBigUInt64BE();

let session = null; // of the publisher that is joined
let asked = ""; // the recovery endpoint that is connected to
let next = null; // the sequence that is printed next; null until the ECHO has come
let head = 0; // below this the publisher has published
let held = new Map(); // sequence → value of what came early
let closing = false, sentComplete = false; // whether the publisher closes; whether JOINED said that all has come
let nackDelay = 20, nackAt = 0, probeDelay = 10, probeAt = 0, joinedAt = 0, printed = -1;

function frame(kind, body) {
  const packed = encode(body, MSGPACK);
  const bytes = Buffer.alloc(1 + HEADER_BYTES + packed.length); // the topic is empty: its zero byte comes first
  bytes.write("p2", 1);
  bytes[3] = 1; // version
  bytes[4] = kind;
  bytes.writeBigUInt64BE(session, 7);
  bytes.writeUInt32BE(packed.length, 27);
  bytes.set(packed, 1 + HEADER_BYTES);
  return bytes;
}

function parse(bytes) { // null where it is no frame
  const at = bytes.indexOf(0) + 1;
  if (at < 1 || at > 256 || bytes.length < at + HEADER_BYTES || bytes.toString("latin1", at, at + 3) !== "p2\x01") return null;
  const found = {
    topic: bytes.toString("utf8", 0, at - 1), kind: bytes[at + 3], session: bytes.readBigUInt64BE(at + 6),
    sequence: Number(bytes.readBigUInt64BE(at + 14)), count: bytes.readUInt32BE(at + 22),
    flags: bytes[at + 4], compression: bytes[at + 5], body: bytes.subarray(at + HEADER_BYTES),
  };
  return found.compression || bytes.readUInt32BE(at + 26) !== found.body.length ? null : found;
}

function welcome(found) {
  const [name, where] = decode(found.body, MSGPACK);
  closing = (found.flags & CLOSING) > 0;
  const host = endpoint.match(/^tcp:\/\/(.*):\d+$/)?.[1];
  const place = where.replace(/^tcp:\/\/(\*|0\.0\.0\.0):/, `tcp://${host}:`);
  if (place !== asked) { // a publisher that was started again has another one, even where its session goes on
    if (asked) recovery.disconnect(asked);
    recovery.connect(asked = place);
    joinedAt = 0;
  }
  if (session === found.session) return; // the connection was made again; heartbeats show what was missed
  if (session !== null) console.error(`session ${session.toString(16)} has ended`);
  console.error(`joins ${name}, session ${found.session.toString(16)}`);
  session = found.session;
  [next, head, held, printed] = [null, 0, new Map(), -1];
  [probeDelay, probeAt] = [10, 0];
}

function echo(found) { // its session field is the probe's id
  const [, streams, floor = 0, , more = 0] = decode(found.body, MSGPACK);
  const ours = streams.find((one) => one[0] === topic);
  if (next !== null || (!ours && Number(more) > 0)) return; // the stream is on another page
  const [, earliest, following, start = 0] = ours ?? [topic, floor, floor, floor];
  [next, head] = [Number(start), Math.max(head, Number(following))];
  console.error(`begins at ${next}; ${earliest} to ${following} can be had`);
  for (const sequence of held.keys()) if (sequence < next) held.delete(sequence);
  joinedAt = 0;
  show();
}

function take(found) {
  if (found.session !== session || found.topic !== topic) return;
  const [values] = decode(found.body, MSGPACK);
  if (values.length !== found.count) return;
  head = Math.max(head, found.sequence + found.count);
  values.forEach((value, index) => {
    const sequence = found.sequence + index;
    if ((next === null || sequence >= next) && (sequence === next || held.size < HELD_MAX)) held.set(sequence, value);
    show(); // what finds no space is asked for later
  });
}

function refused(found) {
  const [name, ranges, reason] = decode(found.body, MSGPACK);
  if (name !== topic || reason === "budget" || next === null) return; // budget: not now, so ask again
  for (const [start, stop] of ranges.map((range) => range.map(Number))) {
    if (start > next || stop <= next) continue; // not its turn; it is asked for again, and refused again
    console.log(`lost ${next} ${stop} ${reason}`);
    next = stop;
    show();
  }
}

function show() {
  while (next !== null && held.has(next) && left > 0) {
    const value = held.get(next);
    held.delete(next);
    console.log(`${next} ${JSON.stringify(value, plain)}`);
    next += 1;
    left -= 1;
  }
}

const plain = (_, value) => typeof value === "bigint" ? Number(value)
  : value?.type === "Buffer" ? Buffer.from(value.data).toString("latin1")
  : value instanceof Uint8Array ? Buffer.from(value).toString("latin1") : value;

function missing() { // the ranges that are neither printed nor held
  const ranges = [];
  const early = [...held.keys()].sort((a, b) => a - b);
  let start = next;
  for (const sequence of [...early, head]) {
    if (sequence > start) ranges.push([BigInt(start), BigInt(sequence)]);
    start = sequence + 1;
    if (ranges.length === RANGES_MAX) break;
  }
  return ranges;
}

async function tick() {
  const now = Date.now();
  if (session === null) return;
  if (next === null) {
    if (now < probeAt) return;
    [probeAt, probeDelay] = [now + probeDelay, Math.min(2 * probeDelay, 100)];
    return recovery.send(frame(PROBE, [probe, [topic], "earliest"]));
  }
  const complete = closing && next >= head; // a publisher that closes waits for this
  if (now >= joinedAt || complete !== sentComplete) {
    [joinedAt, sentComplete] = [now + 5000, complete];
    await recovery.send(frame(JOINED, [...me, complete]));
  }
  if (next !== printed) [printed, nackDelay, nackAt] = [next, 20, now + 20];
  if (next < head && now >= nackAt) {
    [nackAt, nackDelay] = [now + nackDelay, Math.min(2 * nackDelay, 1000)];
    const ranges = missing();
    console.error(`asks for ${ranges.slice(0, 4).join("; ")}`);
    await recovery.send(frame(NACK, [topic, ranges]));
  }
}

async function read(socket) {
  for await (const [bytes] of socket) {
    const found = parse(bytes);
    if (found === null) continue;
    try {
      if (found.kind === WELCOME) welcome(found);
      else if (found.kind === ECHO) echo(found);
      else if (found.kind === DATA) take(found);
      else if (found.kind === REFUSED && found.session === session) refused(found);
      else if (found.kind === HEARTBEAT && found.topic === topic && found.session === session)
        [head, closing] = [Math.max(head, found.sequence), (found.flags & CLOSING) > 0];
    } catch (error) {
      console.error(`a frame of kind ${found.kind} cannot be read: ${error.message}`);
    }
  }
}

const control = (kind) => [0, 0x70, 0x32, 1, kind];
const probeId = Buffer.alloc(8);
probeId.writeBigUInt64BE(probe);
data.subscribe(Buffer.from(`${topic}\0`), Buffer.from(control(WELCOME)),
  Buffer.from([...control(ECHO), 0, 0, ...probeId]));
data.connect(endpoint);
read(data);
read(recovery);
while (left > 0) {
  await tick();
  await new Promise((done) => setTimeout(done, 10));
}
await recovery.send(frame(LEAVE, me));
data.close();
recovery.close(); // after at most half a second, in which LEAVE is sent
