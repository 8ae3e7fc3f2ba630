"""A run folder is plain files: a bag of words answers without seqloom and without torch."""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import seqloom

folder = Path(tempfile.mkdtemp())
rows = [f"a fine film no {n},good\na dull film no {n},bad" for n in range(20)]
(folder / "films.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
settings = ["train.max_steps=60", "train.learning_rate=0.02", "data.vocabulary=300"]
files, run, model = [str(folder / "films.csv")], folder / "run", "bag_of_words:tiny"
seqloom.train("text-classification", files, output_dir=run, model=model, settings=settings)

config = json.loads((run / "config.json").read_text())
weights = load_file(run / "model.safetensors")
tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
row = tokenizer.encode("a dull film", add_special_tokens=False).ids
mean = weights["encoder.embedding.weight"][row].mean(axis=0)
scores = weights["head.output.weight"] @ mean + weights["head.output.bias"]
shares = np.exp(scores - scores.max())
print({n: round(float(p), 3) for n, p in zip(config["labels"], shares / shares.sum(), strict=True)})
print(seqloom.load(run).predict(["a dull film"])[0]["probabilities"])
