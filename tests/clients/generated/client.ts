// Uses a platform through types that were generated from its OpenAPI document. Arguments: its address and a key.
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${key}` } });

function checked<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

const messages = [{ role: "user", content: "hello from types" }] as const;
const completion = checked(
  await client.POST("/inference/v1/chat/completions", { body: { model: "echo", messages: [...messages] } }),
);
const choice = completion.choices[0]!;
const model = checked(
  await client.POST("/v1/preview/models", { body: { name: "typed", project: "generated", base_model: "tabular-mini" } }),
);
const listed = checked(await client.GET("/v1/preview/models", { params: { query: { project: "generated" } } }));
const refused = await client.POST("/inference/v1/chat/completions", { body: { model: "nowhere", messages: [...messages] } });

console.log(
  JSON.stringify({
    text: "message" in choice ? choice.message.content : null,
    name: model.name,
    listed: listed.data.map((one) => one.name),
    status: refused.response.status,
    code: refused.error?.error.code,
  }),
);
