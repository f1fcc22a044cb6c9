// A client that is told to come again later, twice, and does so.

import Anthropic from "@anthropic-ai/sdk";

const [baseURL, apiKey] = process.argv.slice(2);
const asked = { model: "m", max_tokens: 20, messages: [{ role: "user", content: "hello" }] };
const answer = await new Anthropic({ baseURL, apiKey }).messages.create(asked);
console.log(JSON.stringify(answer.content[0].text));
