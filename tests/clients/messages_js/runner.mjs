// The tool runner of the JavaScript client: what it has called, and what it ends with; whole, and streamed.

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const called = [];
const look = betaTool({
  name: "look",
  description: "Look something up.",
  inputSchema: { type: "object", properties: { x: { type: "integer" } }, required: ["x"] },
  run: ({ x }) => {
    called.push(x);
    return `found ${x}`;
  },
});
const asked = { model: "scripted", max_tokens: 50, messages: [{ role: "user", content: "look" }], tools: [look] };

const whole = await client.beta.messages.toolRunner(asked);
let streamed;
for await (const stream of client.beta.messages.toolRunner({ ...asked, stream: true })) {
  streamed = await stream.finalMessage();
}
console.log(JSON.stringify({ called, texts: [whole, streamed].map((message) => message.content[0].text) }));
