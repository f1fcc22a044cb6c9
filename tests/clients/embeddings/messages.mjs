// Asks through the AI SDK's provider of the messages format, and prints what it got as JSON.
import { createAnthropic } from "@ai-sdk/anthropic"
import { generateText, jsonSchema, streamText, tool } from "ai"

const [root, apiKey] = process.argv.slice(2)
const provider = createAnthropic({ baseURL: `${root}/v1`, apiKey })
const model = provider("echo")
const prompt = "hello there friend"
const input = { type: "object", properties: { x: { type: "integer" } }, required: ["x"] }
const tools = { look: tool({ description: "looks", inputSchema: jsonSchema(input) }) }

const whole = await generateText({ model, prompt })
let streamed = ""
for await (const piece of streamText({ model, prompt }).textStream) streamed += piece
const called = await generateText({ model, prompt, tools, toolChoice: { type: "tool", toolName: "look" } })
const status = await generateText({ model: provider("nothing"), prompt, maxRetries: 0 }).catch((error) => error.statusCode)
console.log(
  JSON.stringify({
    text: whole.text,
    reason: whole.finishReason,
    tokens: [whole.usage.inputTokens, whole.usage.outputTokens],
    streamed,
    calls: called.toolCalls.map((call) => [call.toolName, call.input]),
    status,
  }),
)
