"""The heads of the hub's `For...` architectures: which head of ours each is, what of `config.json` it reads,
how its tensors are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.config_options import Option, Options
from seqloom.interop.tensor_names import Rule, layer

MOST_LABELS = 2**20
TASKS = {
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "sentence-similarity",
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}
"""What a kind of head is for."""
MAY_BE_NONE = "may_be_none"
"""Our own key of config.json: that questions may have no answer, for which the hub has none."""
PROBLEMS = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi-label",
    "regression": "regression",
}
"""problem_type of a config.json -> the kind of head."""


@final
@dataclass(frozen=True, kw_only=True)
class HeadForm:
    """The head of an architecture of theirs. Where it reads one state of a text it pools, else it reads each
    token."""

    kind: Literal["sequence", "tagging", "span", "choice"]
    """sequence: classification, multi-label or regression, as problem_type says."""
    output: str
    """The name of its last layer."""
    bias: bool = True
    """Whether that has a bias."""
    hidden: str | None = None
    """The name of the layer before, if there is one."""
    activation: Literal["tanh", "gelu"] = "tanh"
    """Of that layer."""
    pooling: Literal["first", "last"] = "first"
    """Which state it reads."""
    dropout: Sequence[str] = ()
    """Keys of config.json that say its dropout: the first that is there and not null."""
    fixed: Sequence[Option] = ()
    """Keys of config.json that must say what is computed here."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of heads of ours that it can be."""
        return tuple(PROBLEMS.values()) if self.kind == "sequence" else (self.kind,)

    @property
    def pools(self) -> bool:
        return self.kind in ("sequence", "choice")

    def kind_of(self, content: Mapping[str, Any], where: str) -> str:
        """The kind of head that a config.json makes of it. Raises FolderError for one that is not known here."""
        if self.kind != "sequence":
            return self.kind
        problem = content.get("problem_type")
        if problem is None:  # as transformers guesses, and its pipelines do
            return "regression" if len(labels_of(content, where)) == 1 else "classification"
        if not isinstance(problem, str) or problem not in PROBLEMS:
            raise FolderError(
                f"{where}: problem_type must be one of {', '.join(PROBLEMS)}, but is"
                f" {printable(str(problem))[:50]}"
            )
        return PROBLEMS[problem]

    def read(self, content: Mapping[str, Any], where: str, width: int) -> dict[str, Any]:
        """kind, labels, head and may_be_none of a `ReaderConfig`, for states of `width`. Raises FolderError
        for what our head has not got."""
        Options(table=self.fixed).read(content, where, str(content.get("model_type")))
        kind = self.kind_of(content, where)
        labels = labels_of(content, where)
        if kind == "regression" and len(labels) != 1:
            raise FolderError(
                f"{where}: a regression must have one number here, but num_labels is {len(labels)}"
            )
        if kind == "span" and len(labels) != 2:
            raise FolderError(
                f"{where}: a span must have a start and an end, but num_labels is {len(labels)}"
            )
        named = kind in ("classification", "multi-label", "tagging")
        if named and len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise FolderError(
                f"{where}: labels must differ, but id2label has {printable(twice)[:50]} twice; rename one of"
                " them"
            )
        head = {**self.settings(width), "dropout": self._dropout(content, where)}
        return {
            "kind": kind,
            "labels": labels if named else (),
            "head": head,
            "may_be_none": content.get(MAY_BE_NONE) is True,
        }

    def settings(self, width: int) -> dict[str, Any]:
        """Fields of a `HeadConfig`, for states of `width`."""
        hidden = (
            {"hidden_width": width, "activation": self.activation} if self.hidden else {"hidden_width": 0}
        )
        return {**hidden, "pooling": self.pooling, "pair": "joined"} if self.pools else hidden

    def _dropout(self, content: Mapping[str, Any], where: str) -> float:
        key, value = next(
            ((key, content[key]) for key in self.dropout if content.get(key) is not None),
            ("", 0.1 if self.dropout else 0.0),
        )
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise FolderError(
                f"{where}: {key} must be a share in [0, 1), but is {printable(str(value))[:50]}"
            )
        return float(value)

    def write(self, reader: Any, head: Any, encoder: Any) -> dict[str, Any]:
        """The inverse: keys of config.json, for a `ReaderConfig` whose settled head is `head` and whose
        encoder's configuration is `encoder`. Raises UsageError that names a setting which this architecture
        has not got."""
        problems = []
        special_ids = encoder.vocabulary_size - reader.vocabulary_size
        if special_ids not in (0, len(CAUSAL_MARKS)):
            problems.append(
                f"no marks beyond the vocabulary of its tokenizer, but this model has {special_ids}"
            )
        if self.pools:
            if head.pooling != self.pooling:
                problems.append(f"head.pooling={self.pooling}, but this model has {head.pooling}")
            if head.pair != "joined":
                problems.append(f"head.pair=joined, but this model has {head.pair}")
        if self.hidden is None and head.hidden_width:
            problems.append(f"head.hidden_width=0, but this model has {head.hidden_width}")
        elif self.hidden is not None and (head.hidden_width, head.activation) != (
            encoder.width,
            self.activation,
        ):
            mine = f"{head.hidden_width} and {head.activation}" if head.hidden_width else "0"
            problems.append(
                f"head.hidden_width={encoder.width} and head.activation={self.activation}, but this model has"
                f" {mine}"
            )
        if head.crf:
            problems.append("head.crf=false, but this model has a CRF")
        if problems:
            raise UsageError(f"a reader of the hub has {'; '.join(problems)}: it cannot be written as one")
        content: dict[str, Any] = Options(table=self.fixed).write({}, "")
        if self.dropout and "hidden" not in self.dropout[0]:
            content[self.dropout[0]] = head.dropout
        content |= {MAY_BE_NONE: True} if reader.may_be_none else {}
        return content | label_keys(_labels_written(reader.kind, reader.labels)) | _problem(reader.kind)

    def rules(self) -> tuple[Rule, ...]:
        """The names of its tensors."""
        bias = (f"{self.output}.bias",) if self.bias else ()
        output = (Rule("head.output.weight", (f"{self.output}.weight",)), Rule("head.output.bias", bias))
        return (layer("head.hidden", self.hidden), *output) if self.hidden else output


def _problem(kind: str) -> dict[str, Any]:
    return {"problem_type": next((theirs for theirs, ours in PROBLEMS.items() if ours == kind), None)}


def _labels_written(kind: str, labels: Sequence[str]) -> Sequence[str]:
    """What has no names of ours has those that transformers gives it: one of a number or an option, two of
    start and end."""
    return labels or [f"LABEL_{number}" for number in range({"regression": 1, "choice": 1, "span": 2}[kind])]


def label_keys(labels: Sequence[str]) -> dict[str, Any]:
    """The keys of config.json that name labels, in order."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_of(content: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The names of labels, by number: those of id2label, or as many as num_labels says, two by default.
    Raises FolderError where they are none."""
    named, count = content.get("id2label"), content.get("num_labels")
    count = 2 if count is None else count
    if not named:
        if type(count) is not int or not 1 <= count <= MOST_LABELS:
            raise FolderError(
                f"{where}'s num_labels must be from 1 to {MOST_LABELS}, but is {printable(str(count))[:50]}"
            )
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(named, dict) or {str(key) for key in named} != {
        str(number) for number in range(len(named))
    }:
        raise FolderError(
            f"{where}'s id2label must name each number from 0 on, but is {printable(str(named))[:50]}"
        )
    return tuple(str(named[str(number)]) for number in range(len(named)))
