"""Train a recurrent language model on a text, then generate, score and complete with it."""

import tempfile
from pathlib import Path

import seqloom

folder = Path(tempfile.mkdtemp())
animals, places = ["cat", "dog", "bird", "mouse"], ["mat", "roof", "tree", "box"]
lines = [f"the {animal} sat on the {place} ." for animal in animals for place in places]
(folder / "text.txt").write_text("\n".join(lines * 8) + "\n", encoding="utf-8")

seqloom.train(
    "text-generation",
    [str(folder / "text.txt")],
    output_dir=folder / "run",
    model="recurrent_lm:tiny",  # or gpt:tiny, ngram:3gram
    settings=[
        "data.tokenizer=words",
        "train.max_steps=100",
        "train.learning_rate=0.01",
        "train.batch_rows=8",
    ],
)
model = seqloom.load(folder / "run")
print("the cat" + model.generate(["the cat"], seed=7, max_length=8)[0][0].text)
for score in model.score(["the dog sat on the mat .", "mat the on sat dog the ."]):
    print(f"{score.log_probability:8.2f}", score.text)
for completion in model.complete("the cat sat on the m", n=3):
    print(f"{completion.probability:.3f}", "the cat sat on the m" + completion.text)
