// Which model and which view is shown, and the address that restores it.

import { KeyNeeded, json, signIn } from "./asking.js";
import { element } from "./drawing.js";
import { spaced, viewsOf } from "./views.js";

const byId = (id) => document.getElementById(id);
const models = new Map();
let view = null;
let running = null;
// what was typed, also into views that are not shown
let typed = {};

const page = {
  goTo(id, values) {
    typed = { ...typed, ...values };
    show(id);
    ask();
  },
  remember(name, value) {
    saveAddress({ [name]: value });
  },
};

const chosen = () => models.get(byId("model").value);

function options(select, values) {
  select.replaceChildren(...values.map(([value, text]) => element("option", { value }, text)));
}

function showModel(wanted) {
  const model = chosen();
  const views = viewsOf(model);
  const size = model.context ? `reads ${model.context} tokens` : "";
  byId("about").textContent = [model.task, model.model_type, size].filter(Boolean).join(" · ");
  byId("tabs").replaceChildren(...views.map((one) => {
    const tab = element("button", { id: `tab-${one.id}`, type: "button", role: "tab", "aria-controls": "view" }, one.title);
    tab.addEventListener("click", () => show(one.id));
    return tab;
  }));
  byId("form").hidden = !views.length;
  if (!views.length) {
    byId("says").textContent = "There is nothing to ask of a model of this task here.";
    byId("answers").replaceChildren();
    return;
  }
  show(views.some((one) => one.id === wanted) ? wanted : views[0].id);
}

function show(id) {
  stop();
  running = null;
  byId("stop").disabled = true;
  view = viewsOf(chosen()).find((one) => one.id === id);
  for (const tab of byId("tabs").children) {
    const selected = tab.id === `tab-${id}`;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
  }
  byId("view").setAttribute("aria-labelledby", `tab-${id}`);
  byId("says").textContent = view.says;
  byId("ask").textContent = view.button;
  byId("fields").replaceChildren(...view.fields.map(labelled));
  byId("answers").replaceChildren();
  byId("status").textContent = "";
  showBeside();
  saveAddress();
}

// Other models that have this view.
function showBeside() {
  const others = [...models.values()].filter((one) => one !== chosen() && viewsOf(one).some((other) => other.id === view.id && other.title === view.title));
  byId("beside-choice").hidden = !others.length;
  const before = byId("beside").value || typed.beside;
  options(byId("beside"), [["", "none"], ...others.map((one) => [one.name, one.name])]);
  byId("beside").value = others.some((one) => one.name === before) ? before : "";
}

function labelled(field) {
  const id = `field-${field.name}`;
  const control = controlOf(field);
  control.id = id;
  control.name = field.name;
  if (field.required) control.required = true;
  if (field.kind !== "file") control.value = typed[field.name] ?? field.value ?? (field.options ? field.options[0] : "");
  control.addEventListener("input", () => {
    typed[field.name] = control.value;
  });
  const parts = [element("label", { for: id }, field.label), control];
  if (field.help) {
    parts.push(element("small", { id: `${id}-help` }, field.help));
    control.setAttribute("aria-describedby", `${id}-help`);
  }
  if (field.insert) {
    const button = element("button", { type: "button" }, `Insert ${field.insert}`);
    button.addEventListener("click", () => {
      control.setRangeText(field.insert, control.selectionStart, control.selectionEnd, "end");
      control.dispatchEvent(new Event("input"));
      control.focus();
    });
    parts.push(button);
  }
  return element("div", { className: `field ${field.kind ?? "short"}` }, ...parts);
}

function controlOf(field) {
  if (field.options) {
    return element("select", {}, ...field.options.map((one) => element("option", { value: one }, one || "(its own choice)")));
  }
  switch (field.kind) {
    case "area":
      return element("textarea", { rows: 3, placeholder: field.placeholder ?? "" });
    case "number":
      return element("input", { type: "number", min: field.min ?? "", max: field.max ?? "", step: field.step ?? 1 });
    case "file":
      return element("input", { type: "file", accept: field.accept });
  }
  return element("input", { type: "text" });
}

async function values() {
  const found = {};
  for (const field of view.fields) {
    const control = byId(`field-${field.name}`);
    if (field.kind === "number") found[field.name] = control.value === "" ? "" : Number(control.value);
    else if (field.kind === "file") found[field.name] = await base64(control.files[0]);
    else found[field.name] = control.value;
  }
  return found;
}

async function base64(file) {
  let binary = "";
  for (const byte of new Uint8Array(await file.arrayBuffer())) binary += String.fromCharCode(byte);
  return btoa(binary);
}

function stop() {
  running?.abort();
}

async function ask() {
  stop();
  const mine = (running = new AbortController());
  const asked = [chosen()];
  if (!byId("beside-choice").hidden && byId("beside").value) asked.push(models.get(byId("beside").value));
  byId("stop").disabled = false;
  byId("status").textContent = "The model is at work.";
  byId("answers").setAttribute("aria-busy", "true");
  byId("answers").replaceChildren();
  saveAddress();
  const given = await values();
  const failures = await Promise.all(asked.map((model) => askOne(model, asked.length > 1, given, mine.signal)));
  if (running !== mine) return;
  byId("stop").disabled = true;
  byId("answers").setAttribute("aria-busy", "false");
  byId("status").textContent = failures.some(Boolean) ? failures.filter(Boolean).join(" ") : "Done.";
}

// What went wrong; nothing where all went well.
async function askOne(model, named, given, signal) {
  const panel = element("article", { className: spaced(model) ? "spaced" : "" });
  if (named) panel.append(element("h2", {}, model.name));
  byId("answers").append(panel);
  try {
    await view.ask(model, given, panel, signal, page);
    return "";
  } catch (error) {
    if (error instanceof KeyNeeded) showSignIn("The key is no longer valid.");
    return error.name === "AbortError" ? "Stopped." : `${named ? `${model.name}: ` : ""}${error.message}`;
  }
}

function saveAddress(changed = {}) {
  const parts = new URLSearchParams({ model: chosen().name, view: view.id });
  if (byId("beside").value) parts.set("beside", byId("beside").value);
  for (const field of view.fields) {
    const value = changed[field.name] ?? typed[field.name] ?? "";
    if (value !== "") parts.set(field.name, value);
  }
  byId("link").href = `#${parts}`;
  history.replaceState(null, "", `#${parts}`);
}

function restore() {
  const { model, view: wanted, ...fields } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  typed = fields;
  if (models.has(model)) byId("model").value = model;
  byId("beside").value = "";
  showModel(wanted);
  const ready = view && view.fields.every((field) => !field.required || typed[field.name]);
  if (ready && Object.keys(fields).length) ask();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("stop").addEventListener("click", stop);
byId("model").addEventListener("change", () => showModel(view?.id));
byId("beside").addEventListener("change", () => saveAddress());
byId("tabs").addEventListener("keydown", (event) => {
  const tabs = [...byId("tabs").children];
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (!(event.key in steps)) return;
  const next = tabs.at((tabs.indexOf(document.activeElement) + steps[event.key]) % tabs.length);
  next.click();
  next.focus();
});
window.addEventListener("hashchange", restore);

// The key is asked for where the server needs one, or says that it is another.
function showSignIn(said) {
  byId("sign-in").hidden = said === null;
  byId("signed-in").hidden = said !== null;
  byId("sign-in-status").textContent = said ?? "";
  if (said !== null) byId("key").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(byId("key").value.trim());
  start("That is not a key of this server.");
});

async function start(refused) {
  try {
    const found = await json("info");
    showSignIn(null);
    byId("key").value = "";
    for (const model of found.models) models.set(model.name, model);
    options(byId("model"), found.models.map((one) => [one.name, `${one.name} (${one.task})`]));
    restore();
  } catch (error) {
    if (error instanceof KeyNeeded) showSignIn(refused);
    else byId("status").textContent = error.message;
  }
}

start("");
