// What the page asks of the server. An error of the server is thrown with its message.

const KEY = "seqloom-key";

// The server has a key, and it was not given, or another was.
export class KeyNeeded extends Error {}

// The key stays in this tab until it is closed, and goes to this server alone.
export function signIn(key) {
  sessionStorage.setItem(KEY, key);
}

async function answered(path, content, signal) {
  const answer = await fetch(path, request(content, signal));
  if (answer.ok) return answer;
  const { message } = (await answer.json()).error;
  throw answer.status === 401 ? new KeyNeeded(message) : new Error(message);
}

function request(content, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (content === undefined) return { headers, signal };
  headers["Content-Type"] = "application/json";
  return { method: "POST", headers, body: JSON.stringify(content), signal };
}

export async function json(path, content, signal) {
  return (await answered(path, content, signal)).json();
}

export async function bytes(path, signal) {
  return new Uint8Array(await (await answered(path, undefined, signal)).arrayBuffer());
}

// The events of a stream, without the mark of its end.
export async function* events(path, content, signal) {
  const answer = await answered(path, content, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer ended before it was whole");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = part.slice("data: ".length);
      if (event === "[DONE]") return;
      const found = JSON.parse(event);
      if (found.error) throw new Error(found.error.message);
      yield found;
    }
  }
}

// The address of a model's task: a name may hold "/".
export function address(name, pipeline = "") {
  return `models/${name.split("/").map(encodeURIComponent).join("/")}${pipeline}`;
}
