// The views that a model has: what each shows, what it asks for, and how its answer is drawn.

import { address, events, json } from "./asking.js";
import { CHAT } from "./chat.js";
import { Tokens, bars, element, spelled } from "./drawing.js";
import { drawn, picturesOf, textsOf } from "./pictures.js";
import { BEAMS, BEAM_FIELDS } from "./tree.js";

const TEXT = { name: "text", label: "Text", kind: "area", required: true };
const TOP = 10;

const WRITING = {
  id: "write",
  title: "Write",
  button: "Write",
  says: "The model goes on with your text. The darker a token, the less the model expected it; choose one to see the likeliest in its place, and go on from there. A likely text need not be a true one.",
  fields: [
    TEXT,
    { name: "tokens", label: "New tokens at most", kind: "number", min: 1, value: 60 },
    { name: "temperature", label: "Temperature", kind: "number", min: 0, max: 100, step: 0.1, value: 0.8, help: "0 takes the likeliest token, 1 is the model's own distribution." },
    { name: "top_k", label: "The k likeliest (top-k)", kind: "number", min: 1, help: "Only these are drawn from. Empty: all." },
    { name: "top_p", label: "Likeliest up to p (top-p)", kind: "number", min: 0.01, max: 1, step: 0.01, help: "Only those that reach p together. Empty: all." },
    { name: "beams", label: "Beams", kind: "number", min: 1, max: 16, help: "Above 1 the likeliest whole texts are searched for, and nothing is drawn." },
    { name: "seed", label: "Seed", kind: "number", min: 0, help: "The same seed gives the same text. Empty: another each time." },
  ],
  ask: write,
};

const SURPRISE = {
  id: "surprise",
  title: "Surprise",
  button: "Read",
  says: "How surprised the model is by each token of your text, in bits (-log2 p): the darker, the less expected. Choose a token to see what the model expected. It measures this model's habits, not whether a text is right.",
  fields: [TEXT],
  ask: surprise,
};

// Whether its tokens are whole words, which have spaces between them.
export function spaced(model) {
  return ["words", "whitespace"].includes(model.tokenizer);
}

export function viewsOf(model) {
  const inputs = inputsOf(model);
  const own = OWN[model.task]?.(model, inputs) ?? [];
  return [...own, ...picturesOf(model, inputs)];
}

// What a model reads.
function inputsOf(model) {
  switch (model.task) {
    case "question-answering":
      return [{ ...TEXT, name: "question", label: "Question", kind: "text" }, { ...TEXT, name: "context", label: "Text that holds the answer" }];
    case "multiple-choice":
      return [{ ...TEXT, label: "Beginning" }, { ...TEXT, name: "options", label: "Options, one a line", lines: true }];
    case "image-classification":
      return [{ name: "image", label: "Image", kind: "file", required: true, accept: "image/*" }];
    case "fill-mask":
      return [{ ...TEXT, insert: model.mask, help: `The model fills ${model.mask}.` }];
    case "sentence-similarity":
      return pair();
  }
  return model.pairs ? pair(false) : [TEXT];
}

function pair(required = true) {
  const help = required ? "" : "Empty: one text alone.";
  return [{ ...TEXT, label: "First text" }, { ...TEXT, name: "second", label: "Second text", required, help }];
}

const OWN = {
  "text-generation": (model) => [...(model.chat ? [CHAT] : []), writing(model), SURPRISE, tree()],
  translation: outputs,
  summarization: outputs,
  "text2text-generation": outputs,
  "fill-mask": (model, inputs) => [
    answer("Fill", "The likeliest tokens at each mask, with the probability that the model gives them. Likely means usual in what it has read.", inputs, masks),
  ],
  "text-classification": (model, inputs) => [
    answer("Label", "How likely each label is to the model. A high number is no proof: models are often surer than they are right.", inputs, labels),
  ],
  "token-classification": (model, inputs) => [
    answer("Tags", "The tag of each word, and how likely the model holds it; choose a word to read its numbers. What the tags do not name, the model cannot find.", inputs, tags),
  ],
  "question-answering": (model, inputs) => [
    answer("Answer", "The part of the text that answers the question, and the next best parts. The model can only point at the text, even where it does not know.", inputs, spans),
  ],
  "multiple-choice": (model, inputs) => [
    answer("Choose", "How likely each option is to the model as what follows. It compares these options only: none of them may be right.", inputs, choice),
  ],
  "sentence-similarity": (model, inputs) => [
    answer("Similarity", "How alike two texts are to the model, on the scale that it was trained with. It does not say in what they are alike.", inputs, async (asked, given, panel, signal) => {
      const [found] = (await predicted(asked, [textsOf(inputs, given)], signal)).answers;
      panel.append(element("p", { className: "large" }, found.score.toFixed(3)));
    }),
  ],
  "image-classification": (model, inputs) => [
    answer("Label", "How likely each label is to the model. It knows no other labels than these.", inputs, images),
  ],
  "feature-extraction": () => [
    answer("Compare", "How near the first text is to each of the others: the cosine of their vectors. Near means used alike, which opposites are too.", [{ ...TEXT, label: "Texts, one a line: the first is compared with the others", lines: true }], cosines),
  ],
  "word-vectors": () => [
    answer("Neighbours", "The words whose vectors are nearest to a word, or to a sum such as king - man + woman. Near means used alike, which opposites are too.", [{ ...TEXT, label: "A word, or a sum of words", kind: "text" }], neighbours),
  ],
  "replaced-token": () => [
    answer("Replaced", "What the model says of each token: whether another stood there. Rare words look replaced too.", [TEXT], async (asked, given, panel, signal) => {
      const found = await predicted(asked, [given.text], signal);
      panel.append(element("pre", { tabIndex: 0 }, JSON.stringify(found.answers[0], null, 1)));
    }),
  ],
};

function answer(title, says, fields, ask) {
  return { id: "answer", title, button: "Ask", says, fields, ask };
}

function predicted(model, inputs, signal) {
  return json("api/predict", { model: model.name, inputs }, signal);
}

// The ten likeliest tokens in the place of one, each with a button that goes on from it.
function alternatives(model, strip, goOn) {
  const space = spaced(model) ? " " : "";
  return (at) => {
    const { top, before } = strip[at];
    if (!top) return [element("p", {}, "Nothing comes before the first token, so nothing predicts it.")];
    const rows = Object.entries(top).sort((one, other) => other[1] - one[1]).slice(0, TOP);
    return [
      bars("The likeliest in its place, with their probabilities", rows.map(([token, logProb]) => {
        const button = element("button", { type: "button" }, "go on");
        button.setAttribute("aria-label", `go on with ${spelled(token)}`);
        button.addEventListener("click", () => goOn(before + (before.endsWith(space) ? "" : space) + token));
        const special = token.startsWith("bytes:") || /^<.*>$/.test(token);
        return { name: spelled(token), share: Math.exp(logProb), button: special ? "" : button };
      }), 4),
    ];
  };
}

async function write(asked, given, panel, signal, page) {
  const content = { model: asked.name, prompt: given.text, max_tokens: given.tokens };
  for (const name of ["top_k", "top_p", "seed"]) if (given[name] !== "") content[name] = given[name];
  if (given.beams > 1) {
    const { top_k, top_p, seed, ...others } = content;
    const found = await json("v1/completions", { ...others, num_beams: given.beams, n: given.beams }, signal);
    const items = found.choices.map((choice) => element("li", {}, element("span", { className: "given" }, given.text), choice.text));
    panel.append(element("p", {}, "The likeliest whole texts, best first:"), element("ol", { className: "texts" }, ...items));
    return;
  }
  if (given.temperature !== "") content.temperature = given.temperature;
  const strip = [];
  const tokens = new Tokens("Tokens; choose one to see the likeliest in its place", alternatives(asked, strip, (text) => page.goTo("write", { text })));
  panel.append(element("p", { className: "given" }, given.text), tokens.node);
  let written = given.text;
  for await (const event of events("v1/completions", { ...content, stream: true, logprobs: TOP }, signal)) {
    for (const { logprobs } of event.choices) {
      logprobs?.tokens.forEach((token, at) => {
        strip.push({ top: logprobs.top_logprobs[at], before: written });
        tokens.addSurprise(token, logprobs.token_logprobs[at]);
        written += token.startsWith("bytes:") ? "" : (spaced(asked) ? " " : "") + token;
      });
    }
    if (event.seed !== undefined) page.remember("seed", event.seed);
  }
}

async function surprise(asked, given, panel, signal, page) {
  const content = { model: asked.name, prompt: given.text, max_tokens: 0, echo: true, logprobs: TOP };
  const { logprobs } = (await json("v1/completions", content, signal)).choices[0];
  const strip = [];
  const tokens = new Tokens("Tokens; choose one to see what was expected", alternatives(asked, strip, (text) => page.goTo("write", { text })));
  const characters = Array.from(given.text);
  let total = 0, count = 0;
  logprobs.tokens.forEach((token, at) => {
    const logProb = logprobs.token_logprobs[at];
    strip.push({ top: logprobs.top_logprobs[at], before: characters.slice(0, logprobs.text_offset[at]).join("") });
    tokens.addSurprise(token, logProb);
    if (logProb !== null) [total, count] = [total - logProb / Math.LN2, count + 1];
  });
  const mean = total / Math.max(count, 1);
  panel.append(tokens.node, element("p", {}, `${count} tokens, ${total.toFixed(1)} bits in all, ${mean.toFixed(2)} each: perplexity ${(2 ** mean).toFixed(1)}.`));
}

function outputs(model) {
  const title = { translation: "Translate", summarization: "Summarise" }[model.task] ?? "Write";
  const fields = [TEXT];
  if (model.tasks?.length) fields.push({ name: "task", label: "Task", options: model.tasks });
  else fields.push({ name: "beams", label: "Beams", kind: "number", min: 1, max: 16, help: "How many texts are followed at once. Empty: as the model was set." });
  const views = [{ id: "write", title, button: title, fields, ask: output,
    says: "What the model writes for your text. The darker a token, the less sure the model was of it; choose one to see what it weighed up. A fluent output can still be wrong." }];
  return model.tasks?.length ? views : [...views, tree()];
}

function writing(model) {
  if (model.chat) return WRITING;
  return { ...WRITING, says: `${WRITING.says} It has no chat template: it goes on with texts, and knows no turns of a talk.` };
}

function tree() {
  return { ...BEAMS, fields: [TEXT, ...BEAM_FIELDS] };
}

async function output(asked, given, panel, signal) {
  const parameters = {};
  if (given.task) parameters.task = given.task;
  if (given.beams) parameters.generate_parameters = { num_beams: given.beams };
  const [found] = await json(address(asked.name), { inputs: [given.text], parameters }, signal);
  const text = Object.values(found)[0];
  panel.append(element("p", { className: "large" }, text || "(nothing)"));
  if (!text || !asked.pictures.includes("surprisal")) return;
  const content = { model: asked.name, show: "surprisal", inputs: given.text, target: text };
  const { explanation } = await json("api/explain", content, signal);
  const tokens = new Tokens("Tokens of the output; choose one to see what was expected", (at) => [
    element("p", {}, `Likeliest here: ${explanation.expected[at]}`),
  ]);
  explanation.tokens.forEach((token, at) => tokens.addSurprise(token, -explanation.surprisal[at] * Math.LN2));
  panel.append(tokens.node);
  if (!asked.pictures.includes("attention")) return;
  await drawn("Where it looks while it writes", { ...content, show: "attention" }, signal, panel);
}

async function masks(asked, given, panel, signal) {
  const content = { inputs: [given.text], parameters: { top_k: TOP } };
  const [found] = await json(address(asked.name), content, signal);
  const several = Array.isArray(found[0]) ? found : [found];
  several.forEach((mask, number) => {
    panel.append(bars(`Mask ${number + 1}`, mask.map((one) => ({ name: spelled(one.token_str.trim() || one.token_str), share: one.score }))));
  });
}

async function labels(asked, given, panel, signal) {
  const inputs = textsOf(inputsOf(asked), given);
  const [found] = (await predicted(asked, [inputs.length > 1 ? inputs : inputs[0]], signal)).answers;
  const chosen = found.label ?? (found.labels?.join(", ") || "no label");
  panel.append(element("p", { className: "large" }, found.score === undefined ? chosen : found.score.toFixed(3)));
  if (found.probabilities) panel.append(ranked("All labels", found.probabilities));
}

function ranked(caption, probabilities) {
  const rows = Object.entries(probabilities).sort((one, other) => other[1] - one[1]).slice(0, 50);
  return bars(caption, rows.map(([name, share]) => ({ name, share })));
}

async function tags(asked, given, panel, signal) {
  const parameters = { aggregation_strategy: "none", ignore_labels: [] };
  const found = await json(address(asked.name), { inputs: given.text, parameters }, signal);
  const kinds = [...new Set(found.map((one) => one.entity.replace(/^[BI]-/, "")).filter((kind) => kind !== "O"))].sort();
  const words = new Tokens("Words with their tags", (at) => [
    element("p", {}, `${found[at].word}: ${found[at].entity}, p ${found[at].score.toFixed(3)}`),
  ]);
  words.box.classList.add("tagged");
  for (const one of found) {
    const kind = kinds.indexOf(one.entity.replace(/^[BI]-/, ""));
    const option = words.add(one.word, 0, `${one.entity}, p ${one.score.toFixed(2)}`);
    option.append(element("small", {}, one.entity));
    if (kind >= 0) option.style.backgroundColor = `hsl(${(kind * 137.5) % 360} 75% 50% / 0.35)`;
  }
  panel.append(words.node);
}

async function spans(asked, given, panel, signal) {
  const inputs = { question: given.question, context: given.context };
  const found = await json(address(asked.name), { inputs, parameters: { top_k: 5 } }, signal);
  const several = Array.isArray(found) ? found : [found];
  const characters = Array.from(given.context);
  const { start, end } = several[0];
  const part = (from, to) => characters.slice(from, to).join("");
  panel.append(
    element("p", { className: "context" }, part(0, start), element("mark", {}, part(start, end)), part(end)),
    bars("Answers", several.map((one) => ({ name: one.answer || "(no answer)", share: one.score }))),
  );
}

async function choice(asked, given, panel, signal) {
  const options = given.options.split("\n").filter((line) => line.trim());
  const [found] = (await predicted(asked, [[given.text, options]], signal)).answers;
  panel.append(bars("Options", options.map((name, at) => ({ name, share: found.probabilities[at] }))));
}

async function images(asked, given, panel, signal) {
  const found = await json(address(asked.name), { inputs: given.image, parameters: { top_k: TOP } }, signal);
  panel.append(bars("Labels", found.map((one) => ({ name: one.label, share: one.score }))));
}

async function cosines(asked, given, panel, signal) {
  const [source, ...others] = given.text.split("\n").filter((line) => line.trim());
  if (!others.length) throw new Error("There must be at least two lines.");
  const inputs = { source_sentence: source, sentences: others };
  const found = await json(address(asked.name, "/pipeline/sentence-similarity"), { inputs }, signal);
  panel.append(bars(`Cosine with: ${source}`, others.map((name, at) => ({ name, share: found[at] }))));
}

// A line of words, each with its cosine.
async function neighbours(asked, given, panel, signal) {
  const [line] = (await predicted(asked, [given.text], signal)).answers;
  const parts = line.split(" ");
  const rows = [];
  for (let at = 0; at + 1 < parts.length; at += 2) rows.push({ name: parts[at], share: Number(parts[at + 1]) });
  panel.append(bars(`Nearest to ${given.text}`, rows));
}
