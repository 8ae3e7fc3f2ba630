"""The heads of the hub's `For...` architectures: which head of ours each is, what of `config.json` it reads,
the names of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from seqloom.config import HeadConfig
from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS
from seqloom.errors import FolderError, UsageError, printable, shown
from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.tensor_names import Rule, layer
from seqloom.json_values import JsonObject, as_object, as_text, is_number
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.protocols import EncoderConfig

MAX_LABELS = 2**20
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
PROBLEM_TYPES = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi-label",
    "regression": "regression",
}
"""problem_type of a config.json -> the kind of head."""
NAMED = ("classification", "multi-label", "tagging")
"""The kinds whose labels have names."""
NUMBER_OF_LABELS = {"regression": 1, "choice": 1, "span": 2}
"""Of the other kinds."""


@final
@dataclass(frozen=True, kw_only=True)
class HubHead:
    """The head of an architecture of the hub. It pools one state of a text, or reads every token."""

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
    """Keys of config.json that must have the value which is computed here."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of heads of ours that it can be."""
        return tuple(PROBLEM_TYPES.values()) if self.kind == "sequence" else (self.kind,)

    @property
    def pools(self) -> bool:
        return self.kind in ("sequence", "choice")

    def kind_of(self, content: JsonObject, where: object) -> str:
        """The kind of head that a config.json asks for. Raises FolderError for an unknown one."""
        if self.kind != "sequence":
            return self.kind
        problem_type = content.get("problem_type")
        if problem_type is None:  # as the pipelines of transformers guess
            return "regression" if len(labels_of(content, where)) == 1 else "classification"
        kind = PROBLEM_TYPES.get(as_text(problem_type) or "")
        if kind is None:
            raise FolderError(
                f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, but is {shown(problem_type)}",
                where,
            )
        return kind

    def read(self, content: JsonObject, where: object, width: int) -> Fields:
        """kind, labels, head and may_be_none of an `EncoderWithHeadConfig`, for states of `width`. Raises
        FolderError for what our head has not got."""
        Options(table=self.fixed).read(content, where, str(content.get("model_type")))
        kind, labels = self.kind_of(content, where), labels_of(content, where)
        if kind == "regression" and len(labels) != 1:
            raise FolderError(
                f"a regression must have one number here, but num_labels is {len(labels)}", where
            )
        if kind == "span" and len(labels) != 2:
            raise FolderError(
                f"a span must have a start and an end, but num_labels is {len(labels)}", where
            )
        if kind in NAMED and len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise FolderError(
                f"labels must differ, but id2label has {shown(twice)} twice; rename one of them",
                where,
            )
        return {
            "kind": kind,
            "labels": labels if kind in NAMED else (),
            "head": {**self.settings(width), "dropout": self._dropout(content, where)},
            "may_be_none": content.get(MAY_BE_NONE) is True,
        }

    def settings(self, width: int) -> Fields:
        """Fields of a `HeadConfig`, for states of `width`."""
        fields: Fields = {"hidden_width": 0}
        if self.hidden:
            fields = {"hidden_width": width, "activation": self.activation}
        return {**fields, "pooling": self.pooling, "pair": "joined"} if self.pools else fields

    def _dropout(self, content: JsonObject, where: object) -> float:
        for key in self.dropout:
            value = content.get(key)
            if value is None:
                continue
            if not is_number(value) or not 0 <= value < 1:
                raise FolderError(f"{key} must be a share in [0, 1), but is {shown(value)}", where)
            return float(value)
        return 0.1 if self.dropout else 0.0

    def write(
        self, config: EncoderWithHeadConfig, head: HeadConfig, encoder: EncoderConfig
    ) -> Fields:
        """The inverse: keys of config.json, for a model whose head has the resolved settings `head`. Raises
        UsageError that names a setting which this architecture has not got."""
        problems = self._problems(head, encoder)
        extra_tokens = encoder.vocabulary_size - config.vocabulary_size
        if extra_tokens not in (0, len(CAUSAL_MARKS)):
            problems.insert(
                0,
                f"no marks beyond the vocabulary of its tokenizer, but this model has {extra_tokens}",
            )
        if problems:
            raise UsageError(
                f"an encoder with a head of the hub has {'; '.join(problems)}: it cannot be written as one"
            )
        content = Options(table=self.fixed).write({}, "")
        if self.dropout and "hidden" not in self.dropout[0]:
            content[self.dropout[0]] = head.dropout
        if config.may_be_none:
            content[MAY_BE_NONE] = True
        labels = config.labels
        if not labels:  # the names that transformers gives to labels without names
            labels = tuple(f"LABEL_{number}" for number in range(NUMBER_OF_LABELS[config.kind]))
        problem_types = {ours: theirs for theirs, ours in PROBLEM_TYPES.items()}
        return content | label_keys(labels) | {"problem_type": problem_types.get(config.kind)}

    def _problems(self, head: HeadConfig, encoder: EncoderConfig) -> list[str]:
        """Settings of a head that this one has not got."""
        problems = []
        if self.pools and head.pooling != self.pooling:
            problems.append(f"head.pooling={self.pooling}, but this model has {head.pooling}")
        if self.pools and head.pair != "joined":
            problems.append(f"head.pair=joined, but this model has {head.pair}")
        if self.hidden is None and head.hidden_width:
            problems.append(f"head.hidden_width=0, but this model has {head.hidden_width}")
        if self.hidden and (head.hidden_width, head.activation) != (encoder.width, self.activation):
            actual = f"{head.hidden_width} and {head.activation}" if head.hidden_width else "0"
            problems.append(
                f"head.hidden_width={encoder.width} and head.activation={self.activation}, but this model has"
                f" {actual}"
            )
        if head.crf:
            problems.append("head.crf=false, but this model has a CRF")
        return problems

    def rules(self) -> tuple[Rule, ...]:
        """The names of its tensors."""
        bias = (f"{self.output}.bias",) if self.bias else ()
        output = (
            Rule("head.output.weight", (f"{self.output}.weight",)),
            Rule("head.output.bias", bias),
        )
        return (layer("head.hidden", self.hidden), *output) if self.hidden else output


def label_keys(labels: Sequence[str]) -> Fields:
    """The keys of config.json that name labels, in order."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_of(content: JsonObject, where: object) -> tuple[str, ...]:
    """The names of labels, by number: those of id2label, or as many as num_labels says, two by default.
    Raises FolderError if they are none."""
    named, count = content.get("id2label"), content.get("num_labels")
    place = printable(str(where))
    if named:
        names = as_object(named)
        numbers = [str(number) for number in range(len(names or {}))]
        if names is None or set(names) != set(numbers):
            raise FolderError(
                f"{place}'s id2label must name each number from 0 on, but is {shown(named)}"
            )
        return tuple(str(names[number]) for number in numbers)
    count = 2 if count is None else count
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise FolderError(
            f"{place}'s num_labels must be from 1 to {MAX_LABELS}, but is {shown(count)}"
        )
    return tuple(f"LABEL_{number}" for number in range(count))
