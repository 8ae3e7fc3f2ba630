// Everything that is shown is set as text, never as HTML.

const BITS = 16; // the surprisal that is as dark as can be

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// A token as it is read: what cannot be seen has a sign.
export function spelled(token) {
  if (token.startsWith("bytes:")) return token.slice("bytes:".length);
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +$/, (all) => "␣".repeat(all.length)) || "∅";
}

function colour(share) {
  const [red, green, blue] = share < 0 ? [0, 110, 200] : [230, 120, 0];
  return `rgb(${red} ${green} ${blue} / ${0.6 * Math.min(Math.abs(share), 1)})`;
}

// Names with numbers from 0 to 1.
export function bars(caption, rows, digits = 3) {
  const body = element("tbody");
  for (const { name, share, button } of rows) {
    const bar = element("div", { className: "bar" });
    bar.style.width = `${100 * Math.max(0, Math.min(share, 1))}%`;
    const cells = [
      element("th", { scope: "row" }, name),
      element("td", { className: "track" }, bar),
      element("td", { className: "share" }, share.toFixed(digits)),
    ];
    if (button) cells.push(element("td", {}, button));
    body.append(element("tr", {}, ...cells));
  }
  return element("table", { className: "bars" }, element("caption", {}, caption), body);
}

export function table(caption, names, rows) {
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, head));
  made.append(element("tbody", {}, ...body));
  return element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": caption }, made);
}

// Tokens side by side, one of which is chosen: by a click, or with the arrow keys.
export class Tokens {
  constructor(label, details) {
    this.details = details; // of the chosen token, given its number
    this.box = element("div", { className: "tokens", role: "listbox", "aria-label": label });
    this.shown = element("div", { className: "details" });
    this.box.addEventListener("keydown", (event) => this.step(event));
    this.box.addEventListener("click", (event) => {
      const at = this.options().indexOf(event.target.closest("[role=option]"));
      if (at >= 0) this.select(at);
    });
    this.node = element("div", {}, this.box, this.shown);
  }

  // `share` from -1 to 1 is its colour, `note` is read beside it.
  add(token, share, note) {
    const option = element("span", { role: "option", "aria-selected": "false", title: note }, spelled(token));
    option.tabIndex = this.box.children.length ? -1 : 0;
    option.setAttribute("aria-label", `${spelled(token)}, ${note}`);
    option.style.backgroundColor = colour(share ?? 0);
    this.box.append(option);
    if (token.includes("\n")) this.box.append(element("br"));
    return option;
  }

  addSurprise(token, logProb) {
    const bits = logProb === null ? null : -logProb / Math.LN2;
    const note = bits === null ? "the first token, which nothing predicts" : `${bits.toFixed(1)} bits`;
    return this.add(token, bits === null ? 0 : bits / BITS, note);
  }

  options() {
    return [...this.box.querySelectorAll("[role=option]")];
  }

  select(number) {
    this.options().forEach((option, at) => {
      option.tabIndex = at === number ? 0 : -1;
      option.setAttribute("aria-selected", String(at === number));
    });
    this.options()[number].focus();
    this.shown.replaceChildren(...this.details(number));
  }

  // The details of the chosen one anew.
  refresh() {
    const at = this.options().findIndex((option) => option.getAttribute("aria-selected") === "true");
    if (at >= 0) this.shown.replaceChildren(...this.details(at));
  }

  step(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Enter: 0, " ": 0 };
    const options = this.options();
    let at = options.indexOf(document.activeElement);
    if (event.key === "Home") at = 0;
    else if (event.key === "End") at = options.length - 1;
    else if (event.key in steps) at += steps[event.key];
    else return;
    event.preventDefault();
    if (options[at]) this.select(at);
  }
}

// A picture of the server, with ways to keep it; `ask` asks for it in another form.
export function picture(name, found, ask) {
  const source = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(found.svg)}`;
  const image = element("img", { src: source, alt: `${name}. ${found.text.slice(0, 3).join(". ")}` });
  const frame = element("div", { className: "picture", tabIndex: 0, role: "region", "aria-label": name }, image);
  const saves = element("p", { className: "buttons" });
  const numbers = JSON.stringify(found.explanation);
  saves.append(
    saver("Save as SVG", () => keep(`${name}.svg`, new Blob([found.svg], { type: "image/svg+xml" }))),
    saver("Save as PNG", () => keepPng(`${name}.png`, image)),
    saver("Save as HTML", async () => keep(`${name}.html`, new Blob([(await ask("html")).html], { type: "text/html" }))),
    saver("Save the numbers", () => keep(`${name}.json`, new Blob([numbers], { type: "application/json" }))),
  );
  const lines = element("pre", { tabIndex: 0 }, found.text.join("\n"));
  const words = element("details", {}, element("summary", {}, "The same in words"), lines);
  return element("figure", {}, frame, words, saves);
}

// A number from 1 on, with its label.
export function choice(label, most, value) {
  const input = element("input", { type: "number", min: 1, max: most, value });
  const number = () => Math.min(Math.max(Math.round(input.valueAsNumber) || 1, 1), most);
  const set = (wanted) => {
    input.value = Math.min(Math.max(wanted, 1), most);
  };
  return { node: element("label", {}, `${label} (1 to ${most}) `, input), number, set };
}

// Ways to keep what a canvas shows; without `numbers` the picture alone.
export function keepCanvas(name, canvas, numbers) {
  const saves = element("p", { className: "buttons" });
  saves.append(saver("Save as PNG", () => canvas.toBlob((blob) => keep(`${name}.png`, blob))));
  if (numbers) {
    const content = JSON.stringify(numbers);
    saves.append(saver("Save the numbers", () => keep(`${name}.json`, new Blob([content], { type: "application/json" }))));
  }
  return saves;
}

function saver(label, save) {
  const button = element("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    try {
      await save();
    } catch (error) {
      button.after(error.message);
    }
  });
  return button;
}

function keep(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function keepPng(name, image) {
  const canvas = element("canvas", { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => keep(name, blob));
}
