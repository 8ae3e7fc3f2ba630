// Attention of all heads, also of long texts: canvases, and one head at a time.

import { bytes, json } from "./asking.js";
import { bars, choice, element, keepCanvas, spelled } from "./drawing.js";

const SMALL = 32; // a side of a head in the overview
const GAP = 4;
const SIDE = 640; // of the large map, at least
const TOP = 10;

export const HEADS = {
  id: "heads",
  title: "All heads",
  button: "Read",
  says: "Where every head of the model looks, small, and one of them large: a row is a token that looks, a column one that is looked at, and the darker, the more of it is mixed in. Choose a head in the overview, then move over it with the mouse or the arrow keys. It shows where the model looked, not why.",
  ask: show,
};

async function show(asked, given, panel, signal) {
  const content = { model: asked.name, inputs: given.inputs };
  for (const name of ["target", "part"]) if (given[name]) content[name] = given[name];
  const trace = await json("api/trace", content, signal);
  const small = await bytes(`api/trace/${trace.id}/heads`, signal);
  const overview = drawOverview(trace, small);
  const layer = choice("layer", trace.layers, trace.layers);
  const head = choice("head", trace.heads, 1);
  const map = new HeadMap(trace);
  const showHead = () => map.show(layer.number(), head.number());
  for (const one of [layer, head]) one.node.addEventListener("input", showHead);
  overview.addEventListener("click", (event) => {
    const scale = overview.width / overview.clientWidth;
    head.set(Math.floor((event.offsetX * scale) / (SMALL + GAP)) + 1);
    layer.set(Math.floor((event.offsetY * scale) / (SMALL + GAP)) + 1);
    showHead();
  });
  const count = `Layers (rows): ${trace.layers}, heads (columns): ${trace.heads}, tokens: ${trace.source.length}, part: ${trace.part}.`;
  const frame = element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Overview of all heads" }, overview);
  panel.append(element("p", {}, count), frame, element("p", { className: "row" }, layer.node, head.node));
  panel.append(map.node);
  await showHead();
}

// Bytes row by row, dark where they are high.
function paint(pen, values, width, height) {
  const image = pen.createImageData(width, height);
  for (let at = 0; at < values.length; at += 1) {
    const light = 255 - values[at];
    image.data.set([light, Math.round(light * 0.85 + 38), 255 - Math.round(values[at] * 0.35), 255], 4 * at);
  }
  pen.putImageData(image, 0, 0);
}

function drawOverview(trace, small) {
  const canvas = element("canvas", { role: "img", className: "overview" });
  canvas.width = trace.heads * (SMALL + GAP);
  canvas.height = trace.layers * (SMALL + GAP);
  canvas.setAttribute("aria-label", `${trace.layers} layers of ${trace.heads} heads, small; layer and head can be typed below`);
  const [rows, columns] = [trace.target, trace.source].map((side) => Math.min(SMALL, side.length));
  const one = document.createElement("canvas");
  [one.width, one.height] = [columns, rows];
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  for (let number = 0; number < trace.layers * trace.heads; number += 1) {
    paint(one.getContext("2d"), small.subarray(number * rows * columns, (number + 1) * rows * columns), columns, rows);
    const x = (number % trace.heads) * (SMALL + GAP);
    pen.drawImage(one, x, Math.floor(number / trace.heads) * (SMALL + GAP), SMALL, SMALL);
  }
  return canvas;
}

// One head: a pixel for each weight, and the row of the chosen token as numbers.
class HeadMap {
  constructor(trace) {
    this.trace = trace;
    this.row = trace.target.length - 1;
    this.column = 0;
    this.canvas = element("canvas", { className: "map", tabIndex: 0, role: "application" });
    this.canvas.setAttribute("aria-label", "One head: the arrow keys move over what looks (up, down) and what is looked at (left, right)");
    this.cell = Math.max(1, Math.floor(SIDE / Math.max(trace.source.length, trace.target.length)));
    [this.canvas.width, this.canvas.height] = [trace.source, trace.target].map((side) => side.length * this.cell);
    this.plain = document.createElement("canvas");
    [this.plain.width, this.plain.height] = [trace.source.length, trace.target.length];
    this.said = element("p", { role: "status" });
    this.numbers = element("div");
    this.save = element("div");
    this.node = element("div", { className: "beside" }, element("div", {}, this.canvas, this.save), element("div", {}, this.said, this.numbers));
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    this.canvas.addEventListener("click", (event) => {
      const { clientWidth, clientHeight } = this.canvas;
      this.move(Math.floor((event.offsetY * trace.target.length) / clientHeight), Math.floor((event.offsetX * trace.source.length) / clientWidth));
    });
  }

  async show(layer, head) {
    [this.layer, this.head] = [layer, head];
    this.place = `api/trace/${this.trace.id}/attention/${layer - 1}/${head - 1}`;
    paint(this.plain.getContext("2d"), await bytes(this.place), this.plain.width, this.plain.height);
    const name = `attention-layer-${layer}-head-${head}`;
    this.save.replaceChildren(keepCanvas(name, this.canvas, null));
    await this.move(this.row, this.column);
  }

  step(event) {
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    this.move(this.row + down, this.column + right);
  }

  async move(row, column) {
    const { source, target } = this.trace;
    const sameRow = row === this.row && this.shown === this.place;
    this.row = Math.max(0, Math.min(row, target.length - 1));
    this.column = Math.max(0, Math.min(column, source.length - 1));
    this.draw();
    if (!sameRow) {
      this.shown = this.place;
      [this.weights, this.of] = [(await json(`${this.place}/${this.row}`)).weights, this.row];
    }
    const { weights } = this;
    const name = (side, at) => `${spelled(side[at])} (${at + 1})`;
    this.said.textContent = `Layer ${this.layer}, head ${this.head}: ${name(target, this.row)} looks at ${name(source, this.column)}: ${weights[this.column].toFixed(3)}`;
    if (sameRow) return;
    const best = weights.map((share, at) => ({ name: name(source, at), share })).sort((one, other) => other.share - one.share);
    this.numbers.replaceChildren(bars(`${name(target, this.row)} looks most at`, best.slice(0, TOP)));
  }

  // The map, with lines around the chosen row and column.
  draw() {
    const pen = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.plain, 0, 0, width, height);
    pen.strokeStyle = "rgb(200 60 0 / 0.7)";
    pen.lineWidth = Math.max(1, this.cell / 12);
    pen.strokeRect(0, this.row * this.cell, width, this.cell);
    pen.strokeRect(this.column * this.cell, 0, this.cell, height);
  }
}
