// npm's webhook libraries, for tests: node webhooks_npm.mjs FOLDER, with a JSON object a line on standard input.
//
// {"do": "verify", "by", "secret", "headers", "body"}  →  what the library makes of the body, or {"error"}
// {"do": "sign", "by", "secret", "id", "body"}         →  the headers, and the body, of a request
//
// `by` is `standardwebhooks`, `github` (@octokit/webhooks-methods), or one of `cloudevents`' modes.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const require = createRequire(`${folder}/index.js`);
const { Webhook } = require("standardwebhooks");
const { CloudEvent, HTTP } = require("cloudevents");
const github = await import(
  pathToFileURL(`${folder}/node_modules/@octokit/webhooks-methods/dist-node/index.js`)
);

async function verify({ by, secret, headers, body }) {
  if (by === "standardwebhooks") return new Webhook(secret).verify(body, headers);
  if (by === "github") return github.verify(secret, body, headers["x-hub-signature-256"]);
  const found = HTTP.toEvent({ headers, body });
  for (const event of [found].flat()) event.validate();
  return found;
}

async function sign({ by, secret, id, body }) {
  if (by === "standardwebhooks") {
    const now = new Date();
    const signature = new Webhook(secret).sign(id, now, body);
    const stamp = String(Math.floor(now.getTime() / 1000));
    const headers = { "webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signature };
    return { headers, body };
  }
  if (by === "github") {
    const signature = await github.sign(secret, body);
    return { headers: { "x-github-delivery": id, "x-hub-signature-256": signature }, body };
  }
  const event = new CloudEvent({ id, type: "t", source: "/s", data: JSON.parse(body), partitionkey: "k" });
  return by === "binary" ? HTTP.binary(event) : HTTP.structured(event);
}

const work = { verify, sign };
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try {
    answer = await work[asked.do](asked);
  } catch (error) {
    answer = { error: String(error) };
  }
  console.log(JSON.stringify(answer));
}
