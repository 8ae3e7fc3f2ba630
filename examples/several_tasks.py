"""Train one text-to-text model for two tasks at once: the colour of a thing, and its name in German."""

import tempfile
from pathlib import Path

import seqloom

folder = Path(tempfile.mkdtemp())
colours = {"red": "rot", "blue": "blau", "green": "grün", "white": "weiß", "black": "schwarz"}
things = {"cat": "Katze", "cup": "Tasse", "lamp": "Lampe", "flower": "Blume", "clock": "Uhr"}
pairs = [(colour, thing) for colour in colours for thing in things]
labels = [f"a {colour} {thing}\t{colour}\n" for colour, thing in pairs]
german = [
    f"a {colour} {thing}\tdas ist eine {colours[colour]}e {things[thing]}\n"
    for colour, thing in pairs
]
(folder / "colours.tsv").write_text("text\tlabel\n" + "".join(labels), encoding="utf-8")
(folder / "german.tsv").write_text("source\ttarget\n" + "".join(german), encoding="utf-8")
(folder / "run.yaml").write_text(f"""
task: text2text-generation
model: {{name: seq2seq, size: tiny}}
data: {{tokenizer: words, mixing_temperature: 2}}
train: {{max_steps: 150, batch_rows: 32, learning_rate: 0.01, best: score}}
tasks:
  colour: {{task: text-classification, data: {{train: [{folder}/colours.tsv]}}}}
  german: {{task: translation, data: {{train: [{folder}/german.tsv]}}}}
""")
seqloom.train(config=str(folder / "run.yaml"), output_dir=folder / "run")
model = seqloom.load(folder / "run")
print(model.predict(["a blue lamp", "a red cup"], task="colour"))
print(model.predict(["a blue lamp", "a red cup"], task="german"))
print(model.evaluate([f"colour={folder}/colours.tsv"]).metrics["accuracy"])
