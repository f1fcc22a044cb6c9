// Answer queries as the site does: with the theme's own worker, on the built index. node search_worker.js WORKER INDEX QUERY...
const { readFileSync } = require("node:fs");
const { runInThisContext } = require("node:vm");

const [worker, index, ...queries] = process.argv.slice(2);
let take, reply;
globalThis.self = globalThis;
globalThis.addEventListener = (kind, listener) => (take = listener);
globalThis.postMessage = (message) => reply(message);
runInThisContext(readFileSync(worker, "utf8"));

const send = (type, data) =>
  new Promise((resolve) => {
    reply = resolve;
    take({ data: { type, data } });
  });

(async () => {
  await send(0, { ...JSON.parse(readFileSync(index, "utf8")), options: {} });
  const found = {};
  for (const query of queries) {
    found[query] = (await send(2, query)).data.items.map((page) => page[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
