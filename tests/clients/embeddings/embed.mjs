// Embeds through the AI SDK, with both of its providers of the format, and prints what it got as JSON.
import { createOpenAI } from "@ai-sdk/openai"
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { cosineSimilarity, embed, embedMany } from "ai"

const [root, apiKey] = process.argv.slice(2)
const baseURL = `${root}/v1`
const found = {}

for (const [name, provider] of Object.entries({
  openai: createOpenAI({ baseURL, apiKey }),
  compatible: createOpenAICompatible({ name: "yard", baseURL, apiKey }),
})) {
  const model = provider.textEmbeddingModel("echo")
  const { embedding, usage } = await embed({ model, value: "a cat sat" })
  const { embeddings } = await embedMany({ model, values: ["the cat sat", "stocks fell", "cat sat a"] })
  const refused = await embed({ model: provider.textEmbeddingModel("tabular-mini"), value: "a", maxRetries: 0 }).then(
    () => "",
    (error) => `${error.statusCode} ${error.message}`,
  )
  const alike = embeddings.map((other) => Math.round(cosineSimilarity(embedding, other) * 100) / 100)
  found[name] = { size: embedding.length, tokens: usage.tokens, alike, refused }
}
console.log(JSON.stringify(found))
