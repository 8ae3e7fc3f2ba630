// The pictures of `explain`, each a view of its own.

import { json } from "./asking.js";
import { Tokens, bars, choice, element, picture, spelled, table } from "./drawing.js";
import { HEADS } from "./heads.js";

const TARGET = { name: "target", label: "Explain this answer", help: "Empty: the model's own." };
const FOIL = { name: "foil", label: "Compared with", help: "Empty: the next best answer." };
const PART = { name: "part", label: "Part", options: ["", "cross", "encoder", "decoder"], help: "Empty: the attention to the source." };
const LAYER = { name: "layer", label: "Layer", kind: "number", min: 1, help: "From 1 on. Empty: all." };
const LAST = { ...LAYER, help: "From 1 on. Empty: the last." };
const HEAD = { name: "head", label: "Head", kind: "number", min: 1, help: "From 1 on. Empty: all." };
const METHOD = { name: "method", label: "How", options: ["leave-one-out", "integrated-gradients"] };
const WORD = { name: "word", label: "Word whose tag is explained", kind: "number", min: 1, help: "From 1 on. Empty: the first that is no O." };
const WRITES = ["text-generation", "translation", "summarization", "text2text-generation"];

const PICTURES = {
  attention: {
    title: "Where it looks",
    says: "Each row is a token that looks, each column one that is looked at; the darker, the more of it is mixed in. It shows where the model looked, not why it answered as it did.",
    fields: (model) => [...writing(model), ...(isPair(model) ? [PART] : []), LAYER, HEAD],
    more: rows,
  },
  attribution: {
    title: "What each word adds",
    says: "How much each word speaks for the answer (blue) or against it (orange). It is one fair way to share the answer among the words; words that only count together can hide each other.",
    fields: (model) => [TARGET, FOIL, METHOD, ...(model.task === "token-classification" ? [WORD] : [])],
  },
  gates: {
    title: "Gates",
    says: "What each unit of a recurrent layer lets in, keeps and shows at each step. That a unit is high at a word does not say that the model needs it.",
    fields: () => [LAST],
    more: unitColours,
  },
  lens: {
    title: "Layer by layer",
    says: "What the model would say next if it ended after each layer (logit lens). Only the top row is what it was trained for; lower rows are a rough translation.",
    fields: writing,
  },
  knockout: {
    title: "Without each head",
    says: "What is lost when one head of attention is switched off. Heads that do the same work can replace each other, and then none of them seems needed.",
    fields: (model) => (isPair(model) ? [TARGET] : [TARGET, FOIL]),
  },
  induction: {
    title: "Heads that repeat",
    says: "Which heads find what followed an earlier occurrence of a token, on random tokens that are said twice. No text is needed. A low score says nothing about what else a head does.",
    fields: () => [],
    inputs: () => [],
  },
  backoff: {
    title: "Back-off",
    says: "Where an n-gram model takes the probability of each word from: how much of it comes from the longest known history, and how much from shorter ones. It has only counted words, so it knows nothing of what they mean.",
    fields: () => [],
    more: levels,
  },
  words: {
    title: "Words in space",
    says: "Words as points: those that are used alike are near each other. Only two directions of many are drawn, so words that look near may be far apart.",
    fields: () => [],
    inputs: () => [{ name: "words", label: "Words, with commas between", kind: "area", required: true, placeholder: "king, queen, Paris, London" }],
  },
  projection: {
    title: "Texts in space",
    says: "Whole texts as points. Only two directions of many are drawn, so texts that look near may be far apart.",
    fields: () => [],
    inputs: () => [{ name: "texts", label: "Texts, one a line", kind: "area", required: true, lines: true }],
  },
};

const OF_IMAGES = {
  attention: {
    title: "Where it looks",
    says: "Which patches of the image the model mixes into its answer: the darker, the more. It shows where the model looked, not why it answered as it did.",
    fields: () => [LAST],
  },
  attribution: {
    title: "What each patch adds",
    says: "How much the answer loses when a patch is made grey. Patches that only count together can hide each other.",
    fields: () => [TARGET, FOIL],
  },
};

function isPair(model) {
  return WRITES.slice(1).includes(model.task);
}

function writing(model) {
  if (!WRITES.includes(model.task)) return [];
  const text = isPair(model) ? "Empty: what the model writes." : "Empty: nothing.";
  return [{ ...TARGET, label: isPair(model) ? "What it writes" : "Text that follows", help: text }];
}

// Language models show surprise in a view of their own, with more in it.
export function picturesOf(model, inputs) {
  const known = model.task === "image-classification" ? OF_IMAGES : PICTURES;
  const drawings = model.pictures.filter((show) => show in known).map((show) => {
    const { title, says, fields, more, inputs: own } = known[show];
    const texts = own ? own(model) : inputs;
    return {
      id: show,
      title,
      says,
      button: "Draw",
      fields: [...texts, ...fields(model)],
      async ask(asked, given, panel, signal) {
        const options = {};
        for (const field of fields(model)) {
          if (given[field.name] !== "") options[field.name] = given[field.name];
        }
        const content = { model: asked.name, show, inputs: textsOf(texts, given), ...options };
        const found = await drawn(title, content, signal, panel);
        if (more) panel.append(...more(found));
      },
    };
  });
  if (known === OF_IMAGES) return drawings;
  return drawings.flatMap((one) => (one.id === "attention" ? [one, headsView(model, inputs)] : [one]));
}

// Of all heads of a model, which may be asked for one by one.
function headsView(model, inputs) {
  const fields = [...inputs, ...writing(model), ...(isPair(model) ? [PART] : [])];
  const ask = (asked, given, ...rest) => HEADS.ask(asked, { ...given, inputs: textsOf(inputs, given) }, ...rest);
  return { ...HEADS, fields, ask };
}

// Draws a picture, and returns its numbers.
export async function drawn(title, content, signal, panel) {
  const ask = (form) => json("api/explain", { ...content, picture: form }, signal);
  const found = await ask("svg");
  panel.append(picture(title, found, ask));
  return found.explanation;
}

export function textsOf(fields, given) {
  return fields.flatMap((field) => {
    const value = given[field.name];
    if (!field.required && !value) return [];
    return field.lines ? value.split("\n").filter((line) => line.trim()) : [value];
  });
}

// Of an n-gram model: the orders of the word that is chosen.
function levels(found) {
  const tokens = new Tokens("Words; choose one to see its orders", (at) => {
    const rows = found.levels[at].map((level) => [
      `${level.order}-gram`,
      level.history_known ? `seen before ${level.words_after} words` : "unknown",
      level.probability.toPrecision(3),
      level.share.toFixed(3),
      level.passed_down.toFixed(3),
      level.added.toPrecision(3),
    ]);
    const names = ["order", "its history", "p by this order", "own share", "passed down", "added to p"];
    return [table(`p(${found.words[at]}) = ${found.probabilities[at].toPrecision(4)}`, names, rows)];
  });
  found.words.forEach((word, at) => tokens.addSurprise(word, Math.log(found.probabilities[at])));
  return [element("p", {}, "Choose a word to see the numbers of each order:"), tokens.node];
}

// Of maps of attention: where the chosen token looks in one head, to be read as numbers.
function rows(found) {
  const all = typeof found.weights[0][0] === "number" ? [[found.weights]] : found.weights;
  const layer = choice("layer", all.length, all.length);
  const head = choice("head", all[0].length, 1);
  const tokens = new Tokens("What looks; choose a token to read its row", (at) => {
    const row = all[layer.number() - 1][head.number() - 1][at];
    const named = row.map((share, to) => ({ name: spelled(found.source[to]), share }));
    const best = named.sort((one, other) => other.share - one.share).slice(0, 10);
    return [bars(`${spelled(found.target[at])} looks at`, best)];
  });
  found.target.forEach((token) => tokens.add(token, 0, "what looks"));
  for (const one of [layer, head]) one.node.addEventListener("input", () => tokens.refresh());
  const choices = element("p", { className: "row" }, "Choose a token to read where it looks:");
  if (all.length * all[0].length > 1) choices.append(layer.node, head.node);
  return [choices, tokens.node];
}

// Of a recurrent layer: the text in the colours of one unit.
function unitColours(found) {
  const names = Object.keys(found.values);
  const gate = element("select", {}, ...names.map((name) => element("option", {}, name)));
  gate.value = names.at(-1);
  const unit = choice("of unit", found.values[names[0]].length, 1);
  const place = element("div");
  const draw = () => {
    const values = found.values[gate.value][unit.number() - 1];
    const largest = Math.max(...values.map(Math.abs), 1e-9);
    const tokens = new Tokens("The text in the colours of one unit", (at) => [
      element("p", {}, `${gate.value} = ${values[at].toFixed(4)}`),
    ]);
    found.tokens.forEach((token, at) => tokens.add(token, values[at] / largest, values[at].toFixed(3)));
    place.replaceChildren(tokens.node);
  };
  gate.addEventListener("change", draw);
  unit.node.addEventListener("input", draw);
  draw();
  const which = element("label", {}, "The text in the colours of ", gate);
  return [element("p", { className: "row" }, which, unit.node), place];
}
