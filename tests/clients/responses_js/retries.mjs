// Two clients that are told to come again later, twice, and do so.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const asked = { model: "m", messages: [{ role: "user", content: "openai" }] };
const answer = await new OpenAI({ baseURL, apiKey }).chat.completions.create(asked);
const { text } = await generateText({ model: createOpenAI({ baseURL, apiKey }).chat("m"), prompt: "the AI SDK" });
console.log(JSON.stringify([answer.choices[0].message.content, text]));
