// The public openai client tunes a model and answers a batch. Throws at the first surprise.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ apiKey, baseURL, maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const example = { messages: [...messages, { role: "assistant", content: "hello there" }] };

async function uploaded(purpose, rows) {
  const text = rows.map((row) => JSON.stringify(row) + "\n").join("");
  return client.files.create({ file: await toFile(Buffer.from(text), "rows.jsonl"), purpose });
}

async function ended(read, states) {
  for (;;) {
    const found = await read();
    if (states.includes(found.status)) return found;
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

async function all(page) {
  const items = [];
  for await (const item of page) items.push(item);
  return items;
}

const { jobs } = client.fineTuning;
const training = await uploaded("fine-tune", Array(6).fill(example));
const validation = await uploaded("fine-tune", [example]);
assert.equal(await (await client.files.content(validation.id)).text(), JSON.stringify(example) + "\n");
const made = await jobs.create({
  model: "tabular-mini",
  training_file: training.id,
  validation_file: validation.id,
  method: { type: "supervised", supervised: { hyperparameters: { n_epochs: 2, batch_size: "auto" } } },
});
const job = await ended(() => jobs.retrieve(made.id), ["succeeded", "failed", "cancelled"]);
assert.equal(job.status, "succeeded");
assert.equal(job.hyperparameters.n_epochs, 2);
const events = await all(jobs.listEvents(job.id, { limit: 2 }));
assert.deepEqual(events.map((event) => event.type), ["message", ...Array(6).fill("metrics"), "message"]);
const [checkpoint] = await all(jobs.checkpoints.list(job.id));
assert.equal(checkpoint.metrics.full_valid_loss, events[1].data.full_valid_loss);
const results = await (await client.files.content(job.result_files[0])).text();
assert.equal(results.split("\n").length, 8);
const answer = await client.chat.completions.create({ model: job.fine_tuned_model, messages, max_tokens: 4 });
assert.equal(answer.model, job.fine_tuned_model);
assert.ok((await client.models.delete(job.fine_tuned_model)).deleted);
await assert.rejects(jobs.pause(job.id), { status: 409 });
const strange = { model: "tabular-mini", training_file: training.id, integrations: [{ type: "wandb", wandb: {} }] };
await assert.rejects(jobs.create(strange), { status: 400, param: "integrations" });

const body = { model: "echo", messages };
const line = { custom_id: "1", method: "POST", url: "/v1/chat/completions", body };
const input = await uploaded("batch", [line]);
const asked = { input_file_id: input.id, endpoint: "/v1/chat/completions", completion_window: "24h" };
const begun = await client.batches.create(asked);
const batch = await ended(() => client.batches.retrieve(begun.id), ["completed", "failed", "cancelled"]);
assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 });
const answered = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
assert.equal(answered.response.body.choices[0].message.content, "hello");
assert.ok((await all(client.files.list())).length >= 4);
assert.ok((await client.files.delete(input.id)).deleted);

const later = await client.responses.create({ model: "echo", input: "one two", background: true, stream: true });
const types = [];
let last;
for await (const event of later) {
  types.push(event.type);
  if (event.type === "response.created") last = event;
}
assert.equal(types.at(-1), "response.completed");
const after = { stream: true, starting_after: last.sequence_number };
const again = await all(await client.responses.retrieve(last.response.id, after));
assert.deepEqual(again.map((event) => event.type), types.slice(1));
console.log("done");
