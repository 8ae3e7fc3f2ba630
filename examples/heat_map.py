"""Show what an encoder-decoder attends to: train it to reverse strings, then draw its attention weights."""

import tempfile
from pathlib import Path

import seqloom
from seqloom.data.synthetic.pairs import reverse_task

folder = Path(tempfile.mkdtemp())
rows = [f"{source}\t{target}" for source, target in reverse_task(0, 500, "abcd", (1, 4))]
(folder / "train.tsv").write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
seqloom.train(
    "translation",
    [str(folder / "train.tsv")],
    output_dir=folder / "run",
    model="seq2seq:tiny",
    settings=["data.tokenizer=characters", "train.max_steps=150", "train.batch_rows=32"],
)
explanation = seqloom.load(folder / "run").explain("abcd", str(folder / "heat_map.svg"))
print(explanation.numbers["output"])
for row in explanation.numbers["weights"]:  # for each token written
    print([round(weight, 2) for weight in row])
print(explanation.picture)
