"""The campaign of a mixture of tasks, on files of a few lines."""

from __future__ import annotations

import gzip
from pathlib import Path

from benchmarks.task_mixture import MAIN, main

WORDS = ("cat", "dog", "bird", "cow", "fox", "hen")


def write(folder: Path) -> None:
    texts = {
        "trec/train.txt": "".join(
            f"{'AB'[n % 2]}:x what is a {one} ?\n" for n, one in enumerate(WORDS * 3)
        ),
        "stsb/sts-train.csv": "".join(
            f"a\tb\tc\td\t{n % 5}.0\ta {one}\ta {WORDS[n - 1]}\n" for n, one in enumerate(WORDS)
        ),
        "e2e_nlg/devset.csv.gz": "mr,ref\n"
        + "".join(f"name[{one}],a {one} here\n" for one in WORDS),
        "multi30k/train.en.gz": "".join(f"a {one}\n" for one in WORDS),
        "multi30k/train.de.gz": "".join(f"ein {one}\n" for one in WORDS),
    }
    copies = {
        "trec/test.txt": "trec/train.txt",
        "stsb/sts-dev.csv": "stsb/sts-train.csv",
        "stsb/sts-test.csv": "stsb/sts-train.csv",
        "e2e_nlg/testset_w_refs.csv.gz": "e2e_nlg/devset.csv.gz",
    }
    for part in ("val", "test_2016_flickr"):
        for language in ("en", "de"):
            copies[f"multi30k/{part}.{language}.gz"] = f"multi30k/train.{language}.gz"
    texts |= {name: texts[source] for name, source in copies.items()}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        content = text.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def test_it_trains_and_measures_the_mixture_and_each_task(tmp_path: Path) -> None:
    write(tmp_path)
    small = ["--model", "t5:tiny", "--steps", "8", "--set", "model.width=16"]
    main([str(tmp_path), str(tmp_path / "out"), *small, "--set", "data.vocabulary=300"])
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert [line.split()[1] for line in lines[2:]] == list(MAIN)
    # what is done is not done again
    before = (tmp_path / "out" / "all" / "run" / "model.safetensors").stat().st_mtime_ns
    main([str(tmp_path), str(tmp_path / "out"), *small])
    assert (tmp_path / "out" / "all" / "run" / "model.safetensors").stat().st_mtime_ns == before
