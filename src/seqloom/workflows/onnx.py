"""A trained model as ONNX graphs, which run without seqloom and without torch.

    encoder.onnx, step.onnx     of a model that writes (an encoder only where it reads a source)
    model.onnx                  of one that only reads
    onnx.json                   inputs, outputs and their shapes; the state, in order; special ids
    tokenizer.json              of a model of texts; preprocessor_config.json of one of images
    README.md                   how to run them

Every graph is compared with the model before the folder is there.
"""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from seqloom import files
from seqloom.config import DataConfig
from seqloom.errors import UsageError, printable
from seqloom.interop.checkpoint import dtype_name
from seqloom.interop.onnx.check import check
from seqloom.interop.onnx.graph import ModelGraphs, require_onnx, write_graph
from seqloom.interop.onnx.models import cases, exportable
from seqloom.interop.post_processor import with_whole_texts
from seqloom.runs import run_folder
from seqloom.tasks.text.head_task import encoding_options
from seqloom.version import VERSION

logger = logging.getLogger(__name__)

ABOUT = "onnx.json"

ENCODE_TEXT = """\
import json

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
model = onnxruntime.InferenceSession("model.onnx")
special_ids = json.load(open("onnx.json", encoding="utf-8"))["special_ids"]

ids = tokenizer.encode("A text to read.", add_special_tokens=False).ids
inputs = np.array([[*special_ids["prefix"], *ids, *special_ids["suffix"]]])
given = {"inputs": inputs, "mask": np.ones_like(inputs, bool), "segments": np.zeros_like(inputs)}
names = [value.name for value in model.get_inputs()]
hidden, *heads = model.run(None, {name: given[name] for name in names})
print(hidden.shape)
"""

ANSWER_TEXT = """\
import json

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

about = json.load(open("onnx.json", encoding="utf-8"))
tokenizer = Tokenizer.from_file("tokenizer.json")
model = onnxruntime.InferenceSession("model.onnx")

ids = tokenizer.encode("A text to read.", add_special_tokens=False).ids
# several texts are rows that are padded with -1 at the end
tokens = np.array([[*about["row"]["prefix"], *ids, *about["row"]["suffix"]]])
(answers,) = model.run(None, {"tokens": tokens})
print(about["labels"][answers[0].argmax()] if about["labels"] else answers[0])
"""

CLASSIFY_IMAGE = """\
import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession("model.onnx")
images = np.zeros((1, *model.get_inputs()[0].shape[1:]), np.float32)
# resized and normalised as preprocessor_config.json says
(logits,) = model.run(None, {"images": images})
print(logits.argmax(axis=1))
"""

GENERATE = """\
import json

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

about = json.load(open("onnx.json", encoding="utf-8"))
tokenizer, special_ids = Tokenizer.from_file("tokenizer.json"), about["special_ids"]
step = onnxruntime.InferenceSession("step.onnx")
ids = tokenizer.encode("A text.", add_special_tokens=False).ids
sizes = {"rows": 1, "past": 0}
known = {
    value["name"]: np.zeros([sizes.get(size, size) for size in value["shape"]], value["type"])
    for value in about["state"]
}
START
written = []
while len(written) < 20:
    logits, *after = step.run(None, {"tokens": np.array([tokens]), **known})
    known |= zip([value["name"] for value in about["state"]], after)
    logits[:, special_ids["forbidden"]] = -np.inf
    tokens = [int(logits[0].argmax())]  # greedy; any other strategy goes here
    if tokens == [special_ids["eos"]]:
        break
    written += tokens
print(tokenizer.decode(written))
"""

FROM_SOURCE = """\
encoder = onnxruntime.InferenceSession("encoder.onnx")
source = np.array([[*special_ids["prefix"], *ids, *special_ids["suffix"]]])
known |= zip([value.name for value in encoder.get_outputs()], encoder.run(None, {"source": source}))
tokens = special_ids["bos"]"""

FROM_PROMPT = 'tokens = [*special_ids["bos"], *ids]'


def export_onnx(folder: str, out: str) -> dict[str, object]:
    """Writes the model of a run folder as ONNX graphs into the new folder `out`; returns what was written and
    how well it agrees.

    Raises MissingExtraError without the extra `onnx`; UsageError if `out` holds something, or for a model
    that ONNX does not hold; SeqloomError if a graph does not do what the model does. Nothing is left
    behind then.
    """
    require_onnx()
    target = Path(out)
    files.check_new(target, "an exported model", "name another folder")
    task = run_folder.task_of(folder)
    tokenizer, with_head = None, None
    if task == run_folder.PATCHES:
        raise UsageError(
            f"ONNX holds no model of masked patches yet, but {printable(folder)} is one"
        )
    if task == run_folder.IMAGES:
        model = run_folder.open_model(Path(folder), "cpu").model
    else:
        run = run_folder.load_run(folder, "cpu")
        model, tokenizer, with_head = run.model, run.tokenizer, run.with_head
    if run_folder.is_decoder_of_pairs(str(task), model):
        raise UsageError(
            f"ONNX holds no language model that reads a source and writes a target yet, but"
            f" {printable(folder)} is one"
        )
    # onnxruntime opens whole paths
    files.require_unicode(target.absolute())
    with files.atomic_folder(target, "an exported model") as temporary:
        graphs, difference = _write_graphs(model.float(), temporary)
        about: dict[str, object] = {
            "seqloom_version": VERSION,
            "model": type(model).__name__,
            "task": task,
            "graphs": {graph.name: graph.described() for graph in graphs.graphs},
            "state": [value.described() for value in graphs.state],
        }
        if tokenizer is None:
            preprocessor = files.read_bytes(Path(folder) / run_folder.PREPROCESSOR)
            files.write_atomic(temporary / run_folder.PREPROCESSOR, preprocessor)
        else:
            about["special_ids"] = tokenizer.special_ids._asdict()
            if with_head is not None:
                template = encoding_options(with_head.config, tokenizer, DataConfig()).template
                about["labels"] = list(with_head.config.labels)
                about["row"] = {"prefix": template.prefix, "suffix": template.suffix}
            content = tokenizer.to_json()
            if not tokenizer.pretrained:
                content = with_whole_texts(content)
            files.write_atomic(temporary / run_folder.TOKENIZER, content)
        files.write_json(temporary / ABOUT, about)
        program = example(graphs, texts=tokenizer is not None)
        files.write_atomic(temporary / "README.md", read_me(target.resolve().name, graphs, program))
    names = sorted(path.name for path in target.iterdir())
    return {"output": out, "files": names, "largest_difference": difference}


def _write_graphs(model: nn.Module, folder: Path) -> tuple[ModelGraphs, float]:
    """The graphs of a model, written and compared with it, and the largest difference."""
    expected = cases(model)  # first, as the graphs take the model apart
    graphs = exportable(model)
    for graph in graphs.graphs:
        logger.info(f"writing {graph.file}")
        write_graph(graph, folder)
    logger.info("comparing with the model")
    return graphs, check(graphs, expected, folder)


def example(graphs: ModelGraphs, *, texts: bool) -> str:
    """A program that runs the graphs, in the folder that holds them."""
    if graphs.step is None and graphs.graphs[0].metadata:
        return ANSWER_TEXT
    if graphs.step is None:
        return ENCODE_TEXT if texts else CLASSIFY_IMAGE
    start = FROM_PROMPT if graphs.encoder is None else FROM_SOURCE
    return GENERATE.replace("START", start)


STATE = (
    "\nThe state starts as the encoder's outputs of the same names, where there are such, else as zeros"
    " with no past; each\ncall gives it back as `next_NAME`. Rows of unlike length are padded on the left"
    " with `special_ids.pad`, which changes nothing.\n"
)


def read_me(name: str, graphs: ModelGraphs, program: str) -> str:
    """README.md."""
    table = ["| graph | | name | type | shape |", "| --- | --- | --- | --- | --- |"]
    for graph in graphs.graphs:
        for role, values in (("in", graph.inputs), ("out", graph.outputs)):
            for value in values:
                shape, dtype = ", ".join(map(str, value.shape)), dtype_name(value.dtype)
                table.append(f"| `{graph.file}` | {role} | `{value.name}` | {dtype} | {shape} |")
    rows, state = "\n".join(table), "" if graphs.step is None else STATE
    return (
        f"# {printable(name)}\n\nONNX graphs made with seqloom {VERSION}.\n\n```python\n{program}```\n\n"
        f"{rows}\n{state}"
    )
