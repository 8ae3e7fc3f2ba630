"""Renders promptsource's templates on real rows: which are read, how many rows each makes a prompt of.

    python -m benchmarks.prompt_templates DATA [--rows 200]

DATA is a folder with the data sets below and `prompt_templates`, files of promptsource. Where a set has other
names than the templates, it is said how columns and labels are called, as with `--field` and `--labels`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.run_file import read_yaml
from seqloom.tasks.prompting.prompt_rows import read_prompt_rows
from seqloom.tasks.prompting.template import TAGS, read_template, render

TREC = {
    "ABBR": "abb exp",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product"
    " religion sport substance symbol techmeth termeq veh word",
    "DESC": "def desc manner reason",
    "HUM": "gr ind title desc",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other period perc speed temp volsize weight",
}
"""Coarse labels and their fine ones, in the order of their numbers."""


def fine_labels() -> list[str]:
    found: list[str] = []
    for coarse, fine in TREC.items():
        found += [f"{coarse}:{name}" for name in fine.split()]
    return found


@dataclass(frozen=True)
class DataSet:
    """A set that templates are for, and how it is read."""

    files: str
    settings: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    labels: str = ""
    task: str | None = None


NO_HEADER = {"header": False}
NLI = "entailment neutral contradiction"
SETS = {
    "ag_news": DataSet(
        "ag_news/test.csv.gz",
        NO_HEADER,
        {"text": "row['2'] ~ ' ' ~ row['3']", "label": "row['1'] - 1"},
    ),
    "banking77": DataSet(
        "banking77/test.csv", {}, {"label": "categories.index(category)", "intent": "category"}
    ),
    "e2e_nlg_cleaned": DataSet(
        "e2e_nlg/devset.csv.gz", {}, {"meaning_representation": "mr", "human_reference": "ref"}
    ),
    "glue_cola": DataSet("cola/raw/in_domain_dev.tsv", NO_HEADER, {"sentence": "4", "label": "2"}),
    "glue_mnli": DataSet("snli_dev/dev.csv.gz", labels=NLI),
    "glue_rte": DataSet(
        "rte/dev.csv",
        {},
        {"sentence1": "premise", "sentence2": "hypothesis"},
        "entailment not_entailment",
    ),
    "glue_sst2": DataSet("sst2/dev.tsv", NO_HEADER, {"sentence": "1", "label": "2"}),
    "glue_stsb": DataSet(
        "stsb/sts-dev.csv",
        {"header": False, "format": "tsv"},
        {"sentence1": "6", "sentence2": "7", "label": "row['5'] | float"},
    ),
    "piqa": DataSet("piqa/valid.jsonl piqa/valid-labels.lst"),
    "rotten_tomatoes": DataSet(
        "mr_polarity/rt-polarity.neg mr_polarity/rt-polarity.pos",
        {"format": "folder", "encoding": "cp1252"},
        {"label": "['rt-polarity.neg', 'rt-polarity.pos', 'neg', 'pos'].index(label) % 2"},
    ),
    "samsum": DataSet("dialogsum/dialogsum.dev.jsonl.gz"),
    "sick": DataSet(
        "sick/SICK_trial.txt",
        {"format": "tsv"},
        {"label": "entailment_judgment", "entailment_AB": "'A_entails_B'"},
        NLI.upper(),
    ),
    "snli": DataSet("snli_dev/dev.csv.gz", labels=NLI),
    "squadshifts_new_wiki": DataSet("squadshifts/new_wiki_v1.0.json.gz"),
    "sst_default": DataSet(
        "sst5/stsa.fine.dev",
        {"format": "label_first"},
        {"sentence": "text", "label": "(label | int) / 4"},
    ),
    # the questions of COPA are lost in this set
    "super_glue_copa": DataSet(
        "copa_nli/dev.csv",
        {},
        {
            "premise": "text",
            "choice1": "options[0]",
            "choice2": "options[1]",
            "question": "['cause', 'effect'][text | length % 2]",
        },
        task="multiple-choice",
    ),
    "super_glue_rte": DataSet("rte/dev.csv", labels="entailment not_entailment"),
    "trec": DataSet(
        "trec/test.txt",
        {"format": "label_first", "encoding": "latin-1"},
        {
            "coarse_label": f"{list(TREC)}.index(label.split(':')[0])",
            "fine_label": f"{fine_labels()}.index(label)",
        },
    ),
    "tweet_eval_emotion": DataSet(
        "tweeteval/emotion/val_text.txt tweeteval/emotion/val_labels.txt",
        labels="anger joy optimism sadness",
    ),
    "tweet_eval_irony": DataSet(
        "tweeteval/irony/val_text.txt tweeteval/irony/val_labels.txt", labels="non_irony irony"
    ),
    "wiki_split": DataSet(
        "wiki_split/validation.tsv.gz",
        NO_HEADER,
        {
            "complex_sentence": "1",
            "simple_sentence_1": "row['2'].split('<::::>')[0]",
            "simple_sentence_2": "row['2'].split('<::::>')[1]",
        },
    ),
    "xquad_xquad.en": DataSet("xquad/xquad.en.json.gz"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=200)
    given = parser.parse_args()
    total = 0
    for name, one in SETS.items():
        path = str(given.data / "prompt_templates" / f"{name}.yaml")
        paths = [str(given.data / part) for part in one.files.split()]
        rows = read_prompt_rows(paths, DataConfig(**one.settings), ReadReport(), one.task)
        step = max(len(rows) // given.rows, 1)
        some = rows[::step]
        fields = dict(one.fields)
        if name == "banking77":
            categories = sorted({str(row.fields["category"]) for row in rows})
            fields["label"] = f"{categories}.index(category)"
        labels = {label: label for label in one.labels.split()} or None
        templates = read_yaml(Path(path).read_text(), path, TAGS)["templates"]
        counts = []
        for key in templates:
            rendered = render(read_template(path, key), some, fields, labels)
            right = [row for row in rendered if row.targets]
            no_choice = [
                row
                for row in right
                if row.choices is not None and row.targets[0] not in row.choices
            ]
            assert not no_choice, (name, key, no_choice[0].targets)
            counts.append(len(right))
        total += len(counts)
        print(f"{name:22}{len(counts):4} templates, {len(some):5} rows, prompts: {counts}")
    print(f"{total} templates")


if __name__ == "__main__":
    main()
