"use strict";
// Everything that is shown is set as text, never as HTML.
const byId = (id) => document.getElementById(id);
let tasks = new Map();
let running = null;

async function json(path, content, signal) {
  const answer = await fetch(path, {
    method: content ? "POST" : "GET",
    headers: content ? { "Content-Type": "application/json" } : {},
    body: content ? JSON.stringify(content) : undefined,
    signal,
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message);
  return found;
}

function writes() {
  return tasks.get(byId("model").value) === "text-generation";
}

function shown() {
  byId("writing").hidden = !writes();
  byId("score").hidden = !writes();
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice("data: ".length));
    }
  }
}

async function write(model, text, signal) {
  const seed = byId("seed").value;
  const answer = await fetch("v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      model,
      prompt: text,
      stream: true,
      max_tokens: Number(byId("tokens").value),
      temperature: Number(byId("temperature").value),
      ...(seed === "" ? {} : { seed: Number(seed) }),
    }),
    signal,
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  byId("answer").textContent = text;
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) byId("answer").append(choice.text);
  }
}

async function surprisal(model, text, signal) {
  const found = await json("api/score", { model, texts: [text], tokens: true }, signal);
  byId("legend").hidden = false;
  byId("answer").replaceChildren();
  for (const token of found.scores[0].table) {
    const span = document.createElement("span");
    const bits = token.surprisal === null ? "∞" : token.surprisal.toFixed(1);
    const number = document.createElement("small");
    number.textContent = ` ${bits} `;
    span.append(token.token, number);
    span.title = `p ${token.probability.toPrecision(3)}, rank ${token.rank}`;
    const share = Math.min((token.surprisal ?? 20) / 20, 1);
    span.style.backgroundColor = `rgb(255 140 0 / ${0.6 * share})`;
    byId("answer").append(span);
  }
}

async function answered(model, text, signal) {
  const found = await json(`models/${model}`, { inputs: text }, signal);
  byId("answer").textContent = JSON.stringify(found, null, 2);
}

async function run(ask) {
  running?.abort();
  const mine = (running = new AbortController());
  byId("stop").disabled = false;
  byId("legend").hidden = true;
  byId("answer").textContent = "";
  try {
    await ask(byId("model").value, byId("text").value, mine.signal);
  } catch (error) {
    if (error.name !== "AbortError") byId("answer").append(`\n${error.message}`);
  } finally {
    if (running === mine) byId("stop").disabled = true;
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(writes() ? write : answered);
});
byId("score").addEventListener("click", () => run(surprisal));
byId("stop").addEventListener("click", () => running?.abort());
byId("model").addEventListener("change", shown);

json("v1/models").then((found) => {
  tasks = new Map(found.data.map((model) => [model.id, model.task]));
  for (const [name, task] of tasks) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = `${name} (${task})`;
    byId("model").append(option);
  }
  shown();
}, (error) => {
  byId("answer").textContent = error.message;
});
