// A talk with a model that has a chat template: all turns go with each question.

import { events } from "./asking.js";
import { element } from "./drawing.js";

export const CHAT = {
  id: "chat",
  title: "Chat",
  button: "Send",
  says: "A talk: the chat template of the model writes all turns as one text, and the model goes on with it. It says what is likely after such a talk, which need not be true. Turns are kept until the page is left.",
  fields: [
    { name: "text", label: "You say", kind: "area", required: true },
    { name: "tokens", label: "New tokens at most", kind: "number", min: 1, value: 60 },
    { name: "temperature", label: "Temperature", kind: "number", min: 0, max: 100, step: 0.1, value: 0.8, help: "0 takes the likeliest token." },
  ],
  ask: talk,
};
const talks = new Map(); // the turns with each model

async function talk(asked, given, panel, signal) {
  const turns = [...(talks.get(asked.name) ?? []), { role: "user", content: given.text }];
  const answer = { role: "assistant", content: "" };
  const list = element("dl", { className: "turns" }, ...turns.flatMap(shown));
  const [name, said] = shown(answer);
  list.append(name, said);
  const anew = element("button", { type: "button" }, "Begin anew");
  anew.addEventListener("click", () => {
    talks.delete(asked.name);
    list.replaceChildren();
  });
  panel.append(list, anew);
  const content = { model: asked.name, messages: turns, stream: true, max_tokens: given.tokens || 60 };
  if (given.temperature !== "") content.temperature = given.temperature;
  for await (const event of events("v1/chat/completions", content, signal)) {
    for (const { delta } of event.choices) answer.content += delta.content ?? "";
    said.textContent = answer.content;
  }
  talks.set(asked.name, [...turns, answer]);
}

function shown(turn) {
  return [element("dt", {}, turn.role === "user" ? "You" : "Model"), element("dd", {}, turn.content)];
}
