"""The verb predict: a line for each input, whatever the model answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from seqloom.cli.options import Data, Flag, Settings, reading
from seqloom.cli.terminal import put, put_json
from seqloom.config import DataConfig
from seqloom.errors import UsageError, printable

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from seqloom.runs.run_folder import LoadedRun


def predict(
    folder: str, /, *file: Data, settings: Settings = None, trace: str | None = None, json: Flag = False
) -> None:
    """Write the model's output for each line of a file or of standard input (an empty or skipped line gives
    an empty line): a text, the text with its masks filled, its vector, its label or tags; for each question
    its answer, of options the choice; for each image its label and the probability.

    Args:
        folder: A run folder.
        file: A text file, one input a line, or for what reads labels, tags, questions and choices a file as
            for train; - or nothing is standard input. For a model of images any number of image files, .npz
            or IDX files.
        settings: key=value for data.* and decode.*, such as decode.beam=1 or decode.n_best=3.
        trace: A new file for every step of the search: the candidates, which of them go on, and why the
            others fall.
        json: One JSON object a line, with all n-best outputs and their scores, the likeliest tokens of each
            mask, the vector, or the probabilities of all labels.
    """
    import sys

    from seqloom.models.encoder_with_head import EncoderWithHead
    from seqloom.runs.progress import each_text
    from seqloom.runs.run_folder import IMAGES, task_of
    from seqloom.runs.tracing import traced
    from seqloom.tasks.translation.translate import DecodedText
    from seqloom.tasks.translation.translator import CHUNK, load, new_file
    from seqloom.workflows.evaluate import ENCODED

    if task_of(folder) == IMAGES:
        if settings or trace is not None:
            raise UsageError(
                f"--set and --trace belong to texts, but {folder} is a model of {IMAGES}; leave them out"
            )
        _predict_images(folder, file, json)
        return
    if len(file) > 1:
        raise UsageError(
            f"predict takes FOLDER and one FILE, but {len(file)} files are given; ask for one after the other"
        )
    given, decode, data_config = reading(settings)
    place = None if trace is None else new_file(trace)
    model = load(folder)
    for note in model.bundle.notes:
        logger.info(note)
    (name,) = file or ("-",)
    interactive = name == "-" and sys.stdin.isatty()
    if isinstance(model.bundle.model, EncoderWithHead):
        _predict_read(model.bundle, name, given, decode, trace, json, interactive)
        return
    if model.bundle.task in ENCODED:
        if place is not None:
            raise UsageError(
                f"--trace belongs to a search for text, but {folder} is a model of {model.bundle.task}; leave"
                " it out"
            )
        _predict_encoded(model.bundle, name, data_config, decode, json, interactive)
        return

    def tell(outputs: list[DecodedText]) -> None:
        if json:
            put_json({"outputs": [output._asdict() for output in outputs]})
        else:
            put(outputs[0].text)
        if interactive:
            sys.stdout.flush()

    try:
        texts = each_text(name, data_config)
        if place is not None:
            bundle = model.bundle
            traced(
                place,
                texts,
                bundle,
                bundle.decode_with(decode),
                lambda text, watch: model.n_best([text], watch, **decode)[0],
                tell,
            )
            return
        for outputs in model.stream(texts, chunk=1 if interactive else CHUNK, **decode):
            tell(outputs)
    finally:
        sys.stdout.flush()  # what came before an error stands before it


def _predict_images(folder: str, paths: tuple[str, ...], json: bool) -> None:
    """A line for each image: label, probability, image."""
    from seqloom.tasks.images.classify import ImageClassifier

    for found in ImageClassifier.load(folder).stream(paths):
        if json:
            put_json(found._asdict())
        else:
            put(f"{printable(found.label)}\t{found.probability:.4f}\t{found.image}")


def _predict_read(
    bundle: LoadedRun,
    name: str,
    given: dict[str, Any],
    decode: dict[str, Any],
    trace: str | None,
    json: bool,
    interactive: bool,
) -> None:
    """A line for each example: its label, tags, answer or choice."""
    import sys

    from seqloom.tasks.text import predictor

    if decode or trace is not None:
        raise UsageError(
            f"--trace and decode.* belong to models that write text, but this is one of {bundle.task}; leave"
            " them out"
        )
    try:
        for reply in predictor.TextPredictor(bundle, given).stream(
            [name], 1 if interactive else predictor.CHUNK
        ):
            if json:
                put_json(reply.content)
            else:
                put(reply.text)
            if interactive:
                sys.stdout.flush()
    finally:
        sys.stdout.flush()  # what came before an error stands before it


def _predict_encoded(
    bundle: LoadedRun, name: str, data: DataConfig, decode: dict[str, Any], json: bool, interactive: bool
) -> None:
    """A line for each text: its vector, or the text with its masks filled."""
    import sys

    from seqloom.runs.progress import each_text, tallied
    from seqloom.tasks.encoders import fill_mask, sentence_vectors

    masked = bundle.task == "fill-mask"
    if other := sorted(decode.keys() - ({"n_best"} if masked else set())):
        raise UsageError(
            f"decode.{other[0]} changes nothing here, where nothing is decoded"
            + (
                ": only decode.n_best says how many tokens each mask is told; leave it out"
                if masked
                else "; leave it out"
            )
        )
    texts = each_text(name, data)
    try:
        if masked:
            with tallied() as tally:
                skipped = tally if data.on_bad_line == "skip" else None
                filler, most = fill_mask.MaskFiller(bundle), decode.get("n_best", fill_mask.LIKELIEST)
                for filled in filler.fill(
                    texts, most, path=name, skipped=skipped, chunk=1 if interactive else fill_mask.CHUNK
                ):
                    if json:
                        put_json(
                            {
                                "text": filled.text,
                                "masks": [[one._asdict() for one in mask] for mask in filled.masks],
                            }
                        )
                    else:
                        put(filled.text)
                    if interactive:
                        sys.stdout.flush()
            return
        for vector in sentence_vectors.SentenceEncoder(bundle).stream(
            texts, 1 if interactive else sentence_vectors.CHUNK
        ):
            numbers = vector.tolist()
            if json:
                put_json({"vector": numbers})
            else:
                put(" ".join(f"{number:.8g}" for number in numbers))
            if interactive:
                sys.stdout.flush()
    finally:
        sys.stdout.flush()  # what came before an error stands before it


VERBS = (predict,)
