"""Verbs that make and measure models: demo, train, evaluate, predict."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from seqloom.cli.terminal import progress_bar, put, put_json, put_table, say
from seqloom.config import DataConfig, DecodeConfig, apply_settings, parse
from seqloom.errors import UsageError, printable

if TYPE_CHECKING:
    from seqloom.bundles import Bundle


def _not_an_option(_: object, word: object) -> None:
    if isinstance(word, str) and word.startswith("-") and word != "-":
        raise ValueError(f"there is no option {word}")


Data = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_not_an_option)]
"""A file, where - is standard input."""
Settings = Annotated[list[str] | None, Parameter(name="--set", negative="", consume_multiple=False)]
Several = Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)]
Folders = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]
"""Run folders, each with its option."""
Flag = Annotated[bool, Parameter(negative="")]


def demo(*, output_dir: str = "seqloom-demo", steps: int = 900, json: Flag = False) -> int:
    """Train attention on date phrases for about a minute; show its score, examples and heat map.

    Args:
        output_dir: Run folder; where it holds something already, the next free number is added.
        steps: Steps of training.
        json: Only the JSON line on standard output.
    """
    from seqloom.workflows.demo import demo as run_demo

    with progress_bar("demo") as progress:
        result = run_demo(output_dir, steps, say, progress)
    code = _stopped(result.stopped, result.summary["output_dir"])
    if not json and not code:
        put_table("Dates it never saw", result.examples, ("written", "read as", "right"))
    put_json(result.summary)
    return code


def train(
    task: str | None = None,
    /,
    *data: Data,
    model: str | None = None,
    output_dir: str | None = None,
    validation: Several = None,
    config: str | None = None,
    resume: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    settings: Settings = None,
    json: Flag = False,
) -> int:
    """Train a model on your own text into a new run folder, or go on with one: train --resume DIR.

    Args:
        task: translation, text-generation, image-classification, masked-image-modeling, text-classification, sentence-similarity,
            token-classification, question-answering or multiple-choice.
        data: Two parallel files, a prefix such as data/train (for train.en, train.de), or one .tsv, .csv or .jsonl; for text-generation
            any number of texts, tables, folders and patterns such as 'news/*.txt'; also .gz. For image-classification two IDX files
            (images, labels), an .npz with images and labels, or a folder with a folder of image files for each label; for
            masked-image-modeling the same, without labels too.
        model: NAME or NAME:SIZE; seqloom models lists them.
        output_dir: The new run folder.
        validation: Validation files in the same form; without them 2 % (of images 10 %) is split off.
        config: A run file (YAML); arguments and --set change its values.
        resume: A run folder to go on with, to the same bits as if it had never stopped.
        start: A run folder, a Hugging Face directory or hf://NAME whose weights and tokenizer the model begins with: fine-tuning.
        settings: key=value, such as train.max_steps=60 or model.width=300; seqloom models NAME lists all keys.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.train import train as run_train

    with progress_bar("training") as progress:
        result = run_train(
            task,
            data,
            output_dir=output_dir,
            model=model,
            validation=validation or (),
            settings=settings or (),
            config=config,
            resume=resume,
            start=start,
            say=say,
            progress=progress,
        )
    if not result.first:  # another worker speaks for all
        return EXIT_CODES.get(result.stopped, 0)
    code = _stopped(result.stopped, str(result.folder))
    summary: dict[str, Any] = {
        "output_dir": str(result.folder),
        "step": result.step,
        "best_step": result.best_step,
        "stopped": result.stopped,
        **result.metrics,
    }
    if json:
        put_json(summary)
    else:
        if result.metrics:  # none before the first validation
            put_table(f"Validation at step {result.best_step}", _rows(result.metrics), ("metric", "value"))
        put(f"stopped: {result.stopped}; folder: {result.folder}")
    return code


def evaluate(
    folder: str, /, *data: Data, settings: Settings = None, outputs: str | None = None, stride: int | None = None, json: Flag = False
) -> None:
    """Measure a trained model: loss, perplexity; on pairs also BLEU, chrF, exact match; of a language model bits per byte; of labels
    accuracy and macro F1; of a masked language model pseudo-perplexity; of sentence vectors how well their cosines agree with scores of
    similarity; with intervals.

    Args:
        folder: A run folder.
        data: Files of pairs, of texts for a language model, or images with labels, in the same forms as for train; for sentence vectors a
            table of two texts and a score.
        stride: Of a language model with limited context: how far the windows over a long text move on; by default half a window.
        settings: key=value for data.* and decode.*, such as decode.beam=1.
        outputs: Also write the model's texts, or labels, to this new file, one a line.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.evaluate import evaluate as run_evaluate
    from seqloom.workflows.predict import new_file, write_lines

    given, decode = reading(settings)
    if outputs is not None:
        new_file(outputs)  # said before the work, not after it
    result = run_evaluate(folder, data, given, decode, say, stride)
    if json:
        put_json(result.metrics | {f"{name}_signature": signature for name, signature in result.signatures.items()} | result.details)
    else:
        put_table(f"{folder} on {' '.join(data)}", _rows(result.metrics), ("metric", "value"))
        for title, header, rows in _detail_tables(result.details):
            put_table(title, rows, header)
        for name, signature in result.signatures.items():
            put(f"{name}: {signature}")
    if outputs is not None:  # last, so that a full disk costs no metric
        if not result.outputs:
            raise UsageError(f"--outputs is for models that answer each input, but {folder} was only measured; leave it out")
        write_lines(outputs, result.outputs)


def predict(folder: str, /, *file: Data, settings: Settings = None, trace: str | None = None, json: Flag = False) -> None:
    """Write the model's output for each line of a file or of standard input (an empty or skipped line gives an empty line): a text,
    the text with its masks filled, or its vector; or the label and its probability for each image.

    Args:
        folder: A run folder.
        file: A text file, one input a line; - or nothing is standard input. For a model of images any number of image files, .npz or
            IDX files.
        settings: key=value for data.* and decode.*, such as decode.beam=1 or decode.n_best=3.
        trace: A new file for every step of the search: the candidates, which of them go on, and why the others fall.
        json: One JSON object a line, with all n-best outputs and their scores, the likeliest tokens of each mask, the vector, or the
            probabilities of all labels.
    """
    import sys

    from seqloom.bundles import IMAGES, task_of
    from seqloom.models.reader import Reader
    from seqloom.workflows.evaluate import ENCODED
    from seqloom.workflows.predict import CHUNK, load, new_file
    from seqloom.workflows.reading import each_text
    from seqloom.workflows.trace import traced
    from seqloom.workflows.translate import Output

    if task_of(folder) == IMAGES:
        if settings or trace is not None:
            raise UsageError(f"--set and --trace belong to texts, but {folder} is a model of {IMAGES}; leave them out")
        _predict_images(folder, file, json)
        return
    if len(file) > 1:
        raise UsageError(f"predict takes FOLDER and one FILE, but {len(file)} files are given; ask for one after the other")
    given, decode = reading(settings)
    place = None if trace is None else new_file(trace)
    model = load(folder)
    for note in model.bundle.notes:
        say(note)
    (name,) = file or ("-",)
    interactive = name == "-" and sys.stdin.isatty()
    if isinstance(model.bundle.model, Reader):
        _predict_read(model.bundle, name, given, decode, trace, json, interactive)
        return
    data_config = parse(DataConfig, given)
    if model.bundle.task in ENCODED:
        if place is not None:
            raise UsageError(f"--trace belongs to a search for text, but {folder} is a model of {model.bundle.task}; leave it out")
        _predict_encoded(model.bundle, name, data_config, decode, json, interactive)
        return

    def tell(outputs: list[Output]) -> None:
        if json:
            put_json({"outputs": [output._asdict() for output in outputs]})
        else:
            put(outputs[0].text)
        if interactive:
            sys.stdout.flush()

    try:
        texts = each_text(name, data_config, say)
        if place is not None:
            bundle = model.bundle
            traced(place, texts, bundle, bundle.decode_with(decode), lambda text, watch: model.n_best([text], watch, **decode)[0], tell)
            return
        for outputs in model.stream(texts, chunk=1 if interactive else CHUNK, **decode):
            tell(outputs)
    finally:
        sys.stdout.flush()  # what came before an error stands before it


def _predict_images(folder: str, paths: tuple[str, ...], json: bool) -> None:
    """A line for each image: label, probability, image."""
    from seqloom.workflows.classify import ImageClassifier

    for found in ImageClassifier.load(folder).stream(paths):
        if json:
            put_json(found._asdict())
        else:
            put(f"{printable(found.label)}\t{found.probability:.4f}\t{found.image}")


def _predict_read(
    bundle: Bundle, name: str, given: dict[str, Any], decode: dict[str, Any], trace: str | None, json: bool, interactive: bool
) -> None:
    """A line for each example: its label, tags, answer or choice."""
    import sys

    from seqloom.workflows import read

    if decode or trace is not None:
        raise UsageError(f"--trace and decode.* belong to models that write text, but this is one of {bundle.task}; leave them out")
    try:
        for reply in read.TextReader(bundle, given, say).stream([name], 1 if interactive else read.CHUNK):
            if json:
                put_json(reply.content)
            else:
                put(reply.text)
            if interactive:
                sys.stdout.flush()
    finally:
        sys.stdout.flush()  # what came before an error stands before it


def _predict_encoded(bundle: Bundle, name: str, data: DataConfig, decode: dict[str, Any], json: bool, interactive: bool) -> None:
    """A line for each text: its vector, or the text with its masks filled."""
    import sys

    from seqloom.workflows import masks, vectors
    from seqloom.workflows.reading import each_text, tallied

    masked = bundle.task == "fill-mask"
    if other := sorted(decode.keys() - ({"n_best"} if masked else set())):
        raise UsageError(
            f"decode.{other[0]} changes nothing here, where nothing is decoded"
            + (": only decode.n_best says how many tokens each mask is told; leave it out" if masked else "; leave it out")
        )
    texts = each_text(name, data, say)
    try:
        if masked:
            with tallied(say) as tally:
                skipped = tally if data.on_bad_line == "skip" else None
                filler, most = masks.MaskFiller(bundle), decode.get("n_best", masks.LIKELIEST)
                for filled in filler.fill(texts, most, path=name, skipped=skipped, chunk=1 if interactive else masks.CHUNK):
                    if json:
                        put_json({"text": filled.text, "masks": [[one._asdict() for one in mask] for mask in filled.masks]})
                    else:
                        put(filled.text)
                    if interactive:
                        sys.stdout.flush()
            return
        for vector in vectors.SentenceEncoder(bundle, say).stream(texts, 1 if interactive else vectors.CHUNK):
            numbers = vector.tolist()
            if json:
                put_json({"vector": numbers})
            else:
                put(" ".join(f"{number:.8g}" for number in numbers))
            if interactive:
                sys.stdout.flush()
    finally:
        sys.stdout.flush()  # what came before an error stands before it


def reading(settings: list[str] | None, sections: tuple[str, ...] = ("data", "decode")) -> tuple[dict[str, Any], dict[str, Any]]:
    """--set of a verb that reads: (data settings, decode settings), checked. Raises UsageError for other than these sections."""
    content = apply_settings({}, settings or [])
    if other := sorted(content.keys() - set(sections)):
        why = "no file is read" if other == ["data"] else "the model is trained"
        raise UsageError(f"--set can change {' and '.join(f'{one}.*' for one in sections)} here, but not {', '.join(other)}.*: {why}")
    decode = content.get("decode", {})
    groups = decode.get("groups")
    widest = 1000 // groups * groups if isinstance(groups, int) and 0 < groups <= 1000 else 1000
    parse(DecodeConfig, {"beam": widest} | decode, "decode.")  # by itself: the folder's beam is not known yet
    parse(DataConfig, content.get("data", {}), "data.")
    return content.get("data", {}), decode


EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
"""How a process ends that a signal asked to stop."""


def _stopped(reason: str, folder: str) -> int:
    """The exit code of a training that ended for this reason; after a signal, how to go on is said."""
    if reason in EXIT_CODES:
        say(f"go on with: seqloom train --resume {shlex.quote(folder)}")
    return EXIT_CODES.get(reason, 0)


def _rows(metrics: dict[str, float]) -> list[tuple[str, ...]]:
    """Name and value; the ends of an interval stand beside the value that they belong to."""
    rows: list[tuple[str, ...]] = []
    for name, value in metrics.items():
        if not name.endswith(("_low", "_high")):
            interval = f" ({metrics[f'{name}_low']:,.4g} to {metrics[f'{name}_high']:,.4g})" if f"{name}_low" in metrics else ""
            rows.append((name, (f"{value:,}" if isinstance(value, int) else f"{value:,.4g}") + interval))
    return rows


MOST_LABELS, MOST_CONFUSED = 40, 12
"""Labels that are shown in a table, and in one of who is taken for whom; --json holds all."""


def _detail_tables(details: dict[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Title, header and rows of what is known of each label, of each kind of entity, and of who is taken for whom."""
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    for what, title in (("labels", "Labels"), ("entities", "Entities")):
        scores = details.get(what)
        if isinstance(scores, dict) and scores:
            shown = sorted(scores.items(), key=lambda item: -item[1]["support"])[:MOST_LABELS]
            rows: list[tuple[str, ...]] = [
                (printable(name), *(f"{of[key]:.3f}" for key in ("precision", "recall", "f1")), f"{of['support']:,}") for name, of in shown
            ]
            if len(scores) > MOST_LABELS:
                rows.append((f"and {len(scores) - MOST_LABELS:,} more", "", "", "", ""))
            tables.append((title, ("", "precision", "recall", "F1", "examples"), rows))
    confusion = details.get("confusion")
    if isinstance(confusion, dict) and len(confusion["order"]) <= MOST_CONFUSED:
        names = [printable(name) for name in confusion["order"]]
        counts = [
            (name, *(f"{count:,}" for count in row))
            for name, row in zip([*names, "(unseen)"], confusion["counts"], strict=True)
            if sum(row)
        ]
        tables.append(("Which label (rows) was taken for which (columns)", ("", *names), counts))
    return tables


VERBS = (demo, train, evaluate, predict)
