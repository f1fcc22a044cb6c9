// Public clients of responses, with their defaults: openai, the AI SDK and LangChain. Throws at the first surprise.
import assert from "node:assert/strict";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [baseURL, apiKey] = process.argv.slice(2);
const done = [];

async function check(name, run) {
  await run();
  done.push(name);
}

async function collected(stream, piece) {
  const pieces = [];
  for await (const item of stream) pieces.push(piece(item));
  return pieces;
}

const client = new OpenAI({ apiKey, baseURL, maxRetries: 0 });

await check("openai", async () => {
  const first = await client.responses.create({ model: "echo", input: "first" });
  assert.equal(first.output_text, "first");
  const then = await client.responses.create({ model: "echo", input: "then", previous_response_id: first.id });
  assert.equal((await client.responses.retrieve(then.id)).output[0].content[0].text, "then");
  assert.deepEqual(await collected(client.responses.inputItems.list(then.id), (item) => item.role), ["user"]);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), { status: 404 });
  const hosted = { model: "echo", input: "x", tools: [{ type: "web_search" }] };
  await assert.rejects(client.responses.create(hosted), { status: 400, param: "tools[0].type" });
});

await check("openai streams", async () => {
  const events = await client.responses.create({ model: "echo", input: "one two", stream: true });
  const numbers = await collected(events, (event) => event.sequence_number);
  assert.deepEqual(numbers, [...numbers.keys()]);
  const stream = client.responses.stream({ model: "echo", input: "one two" });
  assert.equal((await stream.finalResponse()).output_text, "one two");
});

const reasoned = { model: "echo", input: "one two", reasoning: { effort: "low" } };

await check("openai reasoning", async () => {
  const whole = await client.responses.create(reasoned);
  assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message"]);
  assert.equal(whole.output[0].content[0].text, "one two");
  const final = await client.responses.stream(reasoned).finalResponse();
  assert.deepEqual(final.output.map((item) => item.content[0].text), ["one two", "one two"]);
  const input = [{ role: "user", content: "hi" }, ...whole.output, { role: "user", content: "so?" }];
  assert.equal((await client.responses.create({ model: "echo", input })).output_text, "so?");
});

const model = createOpenAI({ apiKey, baseURL })("echo");
const look = tool({ inputSchema: z.object({ q: z.string() }), execute: async () => "found" });
const calling = { model, prompt: "hi", tools: { look }, toolChoice: "required", maxRetries: 0, stopWhen: stepCountIs(2) };

await check("ai", async () => {
  const first = await generateText({ model, prompt: "hi", maxRetries: 0 });
  assert.equal(first.text, "hi");
  assert.ok(first.usage.totalTokens > 0);
  const turns = [{ role: "user", content: "hi" }, ...first.response.messages, { role: "user", content: "again" }];
  assert.equal((await generateText({ model, messages: turns, maxRetries: 0 })).text, "again");
  const called = await generateText(calling);
  assert.deepEqual(called.steps.map((step) => step.toolCalls[0].toolName), ["look", "look"]);
  const output = Output.object({ schema: z.object({ n: z.number() }) });
  assert.equal(typeof (await generateText({ model, prompt: "x", output, maxRetries: 0 })).output.n, "number");
});

await check("ai reasoning", async () => {
  const providerOptions = { openai: { reasoningEffort: "low", forceReasoning: true } };
  const asked = { model, prompt: "one two", maxRetries: 0, providerOptions };
  const whole = await generateText(asked);
  assert.equal(whole.text, "one two");
  assert.equal(whole.usage.outputTokenDetails.reasoningTokens, 2);
  const turns = [{ role: "user", content: "hi" }, ...whole.response.messages, { role: "user", content: "again" }];
  assert.equal((await generateText({ model, messages: turns, maxRetries: 0 })).text, "again");
  const kinds = await collected(streamText(asked).fullStream, (part) => part.type);
  assert.ok(!kinds.includes("error"));
  assert.ok(kinds.includes("reasoning-end"));
});

await check("ai streams", async () => {
  const plain = streamText({ model, prompt: "one two", maxRetries: 0 });
  assert.equal((await collected(plain.textStream, (piece) => piece)).join(""), "one two");
  const kinds = await collected(streamText(calling).fullStream, (part) => part.type);
  assert.equal(kinds.filter((kind) => kind === "tool-result").length, 2);
  assert.ok(!kinds.includes("error"));
});

const options = { model: "echo", apiKey, useResponsesApi: true, maxRetries: 0, configuration: { baseURL } };
const chain = new ChatOpenAI(options);
const parameters = { type: "object", properties: { q: { type: "string" } }, required: ["q"] };
const tools = [{ type: "function", function: { name: "look", description: "look it up", parameters } }];

await check("LangChain", async () => {
  const answer = await chain.invoke("hi there");
  assert.equal(answer.text, "hi there");
  assert.ok(answer.usage_metadata.total_tokens > 0);
  assert.equal((await collected(await chain.stream("one two"), (chunk) => chunk.text)).join(""), "one two");
  const called = await chain.bindTools(tools, { tool_choice: "look" }).invoke("hi");
  const result = new ToolMessage({ tool_call_id: called.tool_calls[0].id, content: "found" });
  const turns = [new HumanMessage("hi"), called, result, new HumanMessage("so?")];
  assert.equal((await chain.invoke(turns)).text, "so?");
  const structured = chain.withStructuredOutput(z.object({ n: z.number() }), { method: "jsonSchema" });
  assert.equal(typeof (await structured.invoke("x")).n, "number");
});

await check("LangChain reasoning", async () => {
  const modelKwargs = { reasoning: reasoned.reasoning }; // its own option is for the hosted models' names
  const answer = await new ChatOpenAI({ ...options, modelKwargs }).invoke("one two");
  assert.equal(answer.text, "one two");
  assert.equal(answer.usage_metadata.output_token_details.reasoning, 2);
  assert.equal((await chain.invoke([new HumanMessage("one two"), answer, new HumanMessage("so?")])).text, "so?");
});

console.log(JSON.stringify(done));
