// What the page asks of the server. An error of the server is thrown with its message.

export async function json(path, content, signal) {
  const answer = await fetch(path, request(content, signal));
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message);
  return found;
}

function request(content, signal) {
  if (content === undefined) return { signal };
  return {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
    signal,
  };
}

// The events of a stream, without the mark of its end.
export async function* events(path, content, signal) {
  const answer = await fetch(path, request(content, signal));
  if (!answer.ok) throw new Error((await answer.json()).error.message);
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
