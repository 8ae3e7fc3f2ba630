"""Log-likelihoods of answers beside lm-evaluation-harness, with the same weights of transformers.

    python -m benchmarks.prompts MODEL valid.jsonl valid-labels.lst copa.csv [--limit N]

MODEL is a directory that transformers opens (`seqloom export`). The tasks are those of the harness, on local
files: PIQA with its prompt, COPA as premises and two hypotheses. The harness measures its own model (`hf`)
and ours (`seqloom`); then `seqloom prompt` measures the same. Needs the extra `lm-eval` and transformers.

In an export of ours the ids that are never a target have no probability here, while transformers knows no
such ids: they are put back, so that both have the same distribution.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import seqloom
from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.tasks.prompting.prompt_rows import read_prompt_rows

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{validation: {path}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: {text}
doc_to_target: label
doc_to_choice: "{{{{options}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: acc_bytes
"""
LONGEST_ANSWER = 200
"""Tokens."""
TEXTS = {"piqa_here": "Question: {{goal}}\\nAnswer:", "copa_here": "{{goal}} Therefore"}
OURS = """\
templates:
  a:
    jinja: {jinja}
    answer_choices: "{{{{options[0]}}}} ||| {{{{options[1]}}}}"
"""


def write_task(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """The data of a task, its description for the harness and its template for the verb."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f'"{TEXTS[name]}"'
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, path=data, text=text))
    jinja = f'"{TEXTS[name]} ||| {{{{answer_choices[label]}}}}"'
    (folder / f"{name}.template.yml").write_text(OURS.format(jinja=jinja))
    return data


def piqa_rows(paths: list[str]) -> list[dict[str, Any]]:
    rows = []
    for row in read_prompt_rows(paths, DataConfig(), ReadReport()):
        fields = row.fields
        # the verb strips answers, as promptsource does
        answers = [fields["sol1"].strip(), fields["sol2"].strip()]
        rows.append({"goal": fields["goal"], "options": answers, "label": fields["label"]})
    return rows


def log_likelihoods(samples: list[dict[str, Any]]) -> list[list[float]]:
    """By item and answer, in the order of the file."""
    ordered = sorted(samples, key=lambda sample: int(sample["doc_id"]))
    return [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in ordered]


def compare(model: str, folder: Path, name: str, data: Path, limit: int | None) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    # makes the model known to the harness
    importlib.import_module("seqloom.workflows.lm_evaluation_harness")

    found: dict[str, Any] = {}
    for kind in ("hf", "seqloom"):
        found[kind] = simple_evaluate(
            model=kind,
            # log-probabilities of long answers are sums that float32 rounds to more than 1e-4
            model_args=f"pretrained={model}" + ",softmax_dtype=float64" * (kind == "hf"),
            tasks=[name],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            device="cpu",
            batch_size=16,
            limit=limit,
            log_samples=True,
            bootstrap_iters=0,
        )
    theirs, ours = (log_likelihoods(found[kind]["samples"][name]) for kind in ("hf", "seqloom"))
    pairs = [
        (one, other)
        for first, second in zip(theirs, ours, strict=True)
        for one, other in zip(first, second, strict=True)
    ]
    print(f"{name}: {len(theirs)} items, largest difference", end=" ")
    print(f"{max(abs(one - other) for one, other in pairs):.2e} nats")
    for kind in ("hf", "seqloom"):
        metrics = found[kind]["results"][name]
        print(kind, {key: metrics[f"{key},none"] for key in ("acc", "acc_norm", "acc_bytes")})
    result = seqloom.load(model).prompt(
        [str(data)],
        template=str(folder / f"{name}.template.yml"),
        scores="raw,byte",
        limit=limit,
    )
    print("verb", {kind: result.accuracy(kind).value for kind in ("raw", "byte")})


def with_all_ids(model: Path, folder: Path) -> Path:
    """A copy of a model in which every id has a probability."""
    copied = shutil.copytree(model, folder / "model")
    config = json.loads((copied / "config.json").read_text())
    config.pop("suppressed_ids", None)
    (copied / "config.json").write_text(json.dumps(config))
    return copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("piqa")
    parser.add_argument("piqa_labels")
    parser.add_argument("copa")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    copa = read_prompt_rows([given.copa], DataConfig(), ReadReport(), "multiple-choice")
    rows: dict[str, list[dict[str, Any]]] = {
        "piqa_here": piqa_rows([given.piqa, given.piqa_labels]),
        "copa_here": [
            {
                "goal": row.fields["text"],
                "options": row.fields["options"],
                "label": row.fields["label"],
            }
            for row in copa
        ],
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = str(with_all_ids(Path(given.model), folder))
        tokenizer = seqloom.load(model).run.tokenizer
        for name, every in rows.items():
            # the harness refuses answers that are longer than the context
            some = [
                row
                for row in every
                if max(map(len, tokenizer.encode(row["options"]))) <= LONGEST_ANSWER
            ]
            print(f"{name}: {len(every) - len(some)} items left out for a long answer")
            data = write_task(folder, name, some)
            compare(model, folder, name, data, given.limit)


if __name__ == "__main__":
    main()
