"""Train a text classifier on a table of texts and labels, measure it, and label new texts."""

import tempfile
from pathlib import Path

import seqloom

folder = Path(tempfile.mkdtemp())
good, bad = ["wonderful", "charming", "funny", "moving"], ["boring", "clumsy", "flat", "endless"]
things = ["film", "story", "cast", "ending", "script", "music", "camera", "dialogue"]
rows = [f"a {word} {thing},good" for word in good for thing in things]
rows += [f"a {word} {thing},bad" for word in bad for thing in things]
(folder / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")

seqloom.train(
    "text-classification",
    [str(folder / "reviews.csv")],
    output_dir=folder / "run",
    model="bag_of_words:tiny",  # or mlp, convolution, recurrent, bert, gpt, t5
    settings=["train.max_steps=60", "data.vocabulary=300"],
)
model = seqloom.load(folder / "run")
for answer in model.predict(["a moving story", "an endless script"]):
    print(answer["label"], f"{answer['probability']:.2f}")
