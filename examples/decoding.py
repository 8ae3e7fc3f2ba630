"""Decode one language model with several strategies: greedy, beam, diverse beams, sampling, and rules."""

import tempfile
from pathlib import Path
from typing import Any

import seqloom

folder = Path(tempfile.mkdtemp())
subjects = ["a cat", "a dog", "my bird"]
lines = [f"{who} {does} inside" for who in subjects for does in ("sleeps", "plays", "eats")]
(folder / "text.txt").write_text("\n".join(lines * 24) + "\n", encoding="utf-8")
settings = ["data.tokenizer=words", "train.max_steps=150", "train.learning_rate=0.01"]
data, run = [str(folder / "text.txt")], folder / "run"
seqloom.train("text-generation", data, output_dir=run, settings=settings, model="recurrent_lm:tiny")

model = seqloom.load(run)
strategies: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "beam", "beam": 1},
    "beam search": {"strategy": "beam", "beam": 4, "n_best": 2},
    "diverse beams": {"strategy": "beam", "beam": 4, "groups": 4, "n_best": 4},
    "top-k sampling": {"strategy": "sample", "top_k": 5, "temperature": 0.8, "n_best": 2},
    "nucleus sampling": {"strategy": "sample", "top_p": 0.9, "seed": 1, "n_best": 2},
    "banned and forced strings": {"strategy": "beam", "beam": 4, "ban": ["cat"], "begin": "my"},
}
for name, options in strategies.items():
    print(name, [output.text for output in model.generate([""], max_length=10, **options)[0]])
