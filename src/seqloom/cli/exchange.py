"""Verbs that exchange models with other programs: import, export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.options import Flag, Verb
from seqloom.cli.terminal import put_json, put_table
from seqloom.errors import UsageError
from seqloom.json_values import as_object


def import_model(
    place: str, folder: str, /, *, dtype: str | None = None, json: Flag = False
) -> None:
    """Make a run folder from a Hugging Face, ELMo or ARPA model.

    Args:
        place: A directory with config.json and model.safetensors; one with an adapter of PEFT, which is
            merged into its base; one with the options.json and weights.hdf5 of an ELMo, and perhaps a
            vocabulary; hf://NAME or hf://NAME@REVISION, which is downloaded; or the ARPA file of an n-gram
            model, also .gz.
        folder: The new run folder.
        dtype: Type of the weights: float32, float64, bfloat16 or float16. By default 16-bit weights become
            float32 and others stay as they are.
        json: One line of JSON instead of a table.
    """
    from seqloom.workflows.exchange import import_model as run_import

    _put(folder, run_import(place, folder, dtype), json)


def export(
    folder: str,
    out: str,
    /,
    *,
    form: Annotated[str | None, Parameter(name="--format")] = None,
    shard_size: int | None = None,
    weights: str | None = None,
    json: Flag = False,
) -> None:
    """Write a model in a form that other programs read.

    With --weights it is a run folder in fewer bits. Otherwise the form is a Hugging Face directory, which
    transformers opens, ONNX, the files of an ELMo, for an n-gram model an ARPA file, or for word vectors a
    file of theirs.

    Args:
        folder: A run folder.
        out: The new directory. For an n-gram model the new file, .arpa or .gz; for word vectors .txt or .vec
            (word2vec's text), .bin (its binary form) or .glove (without the first line).
        form: huggingface, elmo (options.json and weights.hdf5, for AllenNLP), arpa (for KenLM, SRILM and
            speech recognisers), onnx or word-vectors. The default is arpa for n-gram models, elmo and
            word-vectors for those, huggingface for others.
        shard_size: For huggingface: the most MiB of weights in one file. By default all are in one.
        weights: int8 or bfloat16: write a run folder instead, with the weights of a model that has a compiled
            step of decoding in this type, for all verbs but train. It writes the same texts as the model with
            decode.weights=TYPE.
        json: One line of JSON instead of a table.
    """
    from seqloom.workflows.exchange import export_model
    from seqloom.workflows.stored_weights import export_stored

    if weights is None:
        _put(out, export_model(folder, out, form, shard_size), json)
        return
    if form is not None or shard_size is not None:
        option = "--format" if form is not None else "--shard-size"
        raise UsageError(
            f"{option} changes nothing with --weights, which writes a run folder; leave it out"
        )
    _put(out, export_stored(folder, out, weights), json)


def _put(place: str, result: Mapping[str, object], json: bool) -> None:
    ngrams = as_object(result.get("ngrams"))
    if json:
        put_json(result)
    elif ngrams is not None:
        rows = [(order, f"{count:,}") for order, count in ngrams.items()]
        put_table(place, rows, ("order", "n-grams"))
    else:
        details = {name: value for name, value in result.items() if name not in ("output", "notes")}
        put_table(place, [(name, _text(value)) for name, value in details.items()], ("", ""))


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(str, value))
    return str(value)


VERBS = (
    Verb(import_model, "seqloom import hf://openai-community/gpt2 runs/gpt2", "import"),
    Verb(export, "seqloom export runs/reviews reviews-hf"),
)
