// The tree of a beam search: every step is a column, and what fell is pale.

import { json } from "./asking.js";
import { choice, element, keepCanvas, spelled, table } from "./drawing.js";

const WIDTH = 152; // of a column
const HEIGHT = 24; // of a hypothesis
const SIZE = 13;
const FATES = {
  "goes on": "goes on",
  ends: "ends: it is whole",
  "is cut": "is cut: as long as it may be",
  falls: "falls: others are likelier",
};

export const BEAMS = {
  id: "beams",
  title: "Beam tree",
  button: "Search",
  says: "How a beam search looks for the likeliest text: at each step the best hypotheses go on, what fell is pale, and what is whole is bold, with ■. The number is Σ log p of the text so far, which can only fall. The likeliest text is often short or dull, and no truer than another.",
  ask: drawTree,
};
export const BEAM_FIELDS = [
  { name: "beams", label: "Beams", kind: "number", min: 2, max: 16, value: 4, help: "How many hypotheses go on at each step." },
  { name: "tokens", label: "New tokens at most", kind: "number", min: 1, max: 64, value: 12 },
];

async function drawTree(asked, given, panel, signal) {
  const content = { model: asked.name, inputs: given.text, beam: given.beams || 4, tokens: given.tokens || 12 };
  const { nodes, outputs } = await json("api/beams", content, signal);
  const steps = Math.max(0, ...nodes.map((node) => node.step));
  const best = outputs.map((one) => element("li", {}, one.text.replaceAll("\n", "⏎") || "(nothing)", ` (score ${one.score.toFixed(3)})`));
  panel.append(element("p", {}, "What it found, best first:"), element("ol", { className: "texts" }, ...best));
  const canvas = element("canvas", { role: "img" });
  canvas.setAttribute("aria-label", `Tree of ${nodes.length} hypotheses in ${steps} steps; the same as tables below`);
  draw(canvas, nodes, steps);
  const frame = element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Tree of the search" }, canvas);
  const step = choice("step", steps, 1);
  const shown = element("div");
  const showStep = () => shown.replaceChildren(ofStep(nodes, step.number()));
  step.node.addEventListener("input", showStep);
  if (steps) showStep();
  panel.append(frame, keepCanvas("beam-tree", canvas, { nodes, outputs }), element("p", { className: "row" }, step.node), shown);
}

// The text of a hypothesis: its token and those before it.
function textOf(nodes, node) {
  const tokens = [];
  for (let at = node; at; at = at.parent === null ? null : nodes[at.parent]) tokens.unshift(spelled(at.token));
  return tokens.join(" ");
}

function ofStep(nodes, step) {
  const rows = nodes.filter((node) => node.step === step).sort((one, other) => other.total - one.total);
  const cells = rows.map((node) => [textOf(nodes, node), node.log_prob.toFixed(3), node.total.toFixed(3), FATES[node.fate]]);
  return table(`Hypotheses of step ${step}, the likeliest first`, ["text so far", "log p of its last token", "Σ log p", "what became of it"], cells);
}

function draw(canvas, nodes, steps) {
  const columns = new Map();
  const places = new Map();
  nodes.map((node, number) => [node, number]).sort(([one], [other]) => one.step - other.step || other.total - one.total).forEach(([node, number]) => {
    const row = columns.get(node.step) ?? 0;
    columns.set(node.step, row + 1);
    places.set(number, { x: (node.step - 1) * WIDTH + 24, y: row * HEIGHT + 16 });
  });
  const scale = Math.min(2, 16000 / (steps * WIDTH + 32));
  const height = Math.max(1, ...columns.values()) * HEIGHT + 16;
  canvas.width = (steps * WIDTH + 32) * scale;
  canvas.height = height * scale;
  canvas.style.width = `${steps * WIDTH + 32}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name);
  pen.scale(scale, scale);
  pen.fillStyle = ink("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.textBaseline = "middle";
  nodes.forEach((node, number) => {
    const { x, y } = places.get(number);
    const from = node.parent === null ? { x: -WIDTH + 24, y: 16 } : places.get(node.parent);
    const fell = node.fate === "falls";
    pen.strokeStyle = fell ? ink("--pale") : ink("--accent");
    pen.lineWidth = fell ? 1 : 1.5;
    pen.beginPath();
    pen.moveTo(node.parent === null ? 2 : from.x + WIDTH - 34, from.y);
    pen.lineTo(x - 4, y);
    pen.stroke();
    pen.font = `${node.fate === "ends" ? "bold " : ""}${SIZE}px system-ui, sans-serif`;
    pen.fillStyle = fell ? ink("--pale-ink") : ink("--ink");
    pen.fillText(spelled(node.token).trim().slice(0, 9), x, y, WIDTH - 90);
    pen.fillText(node.total.toFixed(2) + (node.fate === "ends" ? " ■" : ""), x + WIDTH - 82, y, 46);
  });
}
