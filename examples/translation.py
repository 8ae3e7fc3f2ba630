"""Train an encoder-decoder with attention on pairs of texts, and measure it: it learns to reverse words."""

import tempfile
from pathlib import Path

import seqloom
from seqloom.data.synthetic.pairs import reverse_task

folder = Path(tempfile.mkdtemp())
for part, seed, number in (("train", 0, 500), ("test", 1, 20)):
    pairs = list(reverse_task(seed, number, "abcd", (1, 4)))
    (folder / f"{part}.source").write_text(
        "".join(f"{source}\n" for source, _ in pairs), encoding="utf-8"
    )
    (folder / f"{part}.target").write_text(
        "".join(f"{target}\n" for _, target in pairs), encoding="utf-8"
    )

seqloom.train(
    "translation",
    [str(folder / "train.source"), str(folder / "train.target")],
    output_dir=folder / "run",
    model="seq2seq:tiny",  # or transformer:tiny, t5:tiny
    settings=[
        "data.tokenizer=characters",
        "model.cell=lstm",
        "train.max_steps=150",
        "train.batch_rows=32",
    ],
)
model = seqloom.load(folder / "run")
print(model.predict(["abcd", "dab"], beam=3))
