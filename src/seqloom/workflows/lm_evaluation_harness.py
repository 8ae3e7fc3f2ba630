"""EleutherAI's lm-evaluation-harness on the models of seqloom.

    lm_eval --model seqloom --model_args pretrained=RUN --tasks piqa            versions with plugins
    seqloom-lm-eval --model seqloom --model_args pretrained=RUN --tasks piqa    older ones too

The harness asks a model three things: how likely a text is after another, how likely a text is, and what it
writes after a text. Needs the extra `lm-eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

from seqloom.errors import MissingExtraError, UsageError, printable
from seqloom.evaluation.perplexity import score_texts
from seqloom.json_values import several_texts
from seqloom.protocols import Settings
from seqloom.runs.run_folder import load_run
from seqloom.tasks.language_modeling.generate import TASK
from seqloom.tasks.prompting.answers import answer_scorer
from seqloom.tasks.prompting.written_answers import AnswerWriter

try:
    # first, because the harness makes its own models known only where there are none yet
    import lm_eval.models  # noqa: F401
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    raise MissingExtraError("lm-evaluation-harness", "lm-eval") from None

NEW_TOKENS = 256
"""Of a written text, at most, where a task says nothing: as the harness has it."""


class HarnessRequest(Protocol):
    """What the harness asks of one instance of a task."""

    args: tuple[Any, ...]


@final
@register_model("seqloom")
class SeqloomLM(LM):  # type: ignore[misc]  # the harness is not there where types are checked
    """A run folder, a Hugging Face directory or hf://NAME@REVISION as a model of the harness."""

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        add_bos_token: bool | None = None,
    ) -> None:
        """The sizes of batches that the harness hands on change nothing: they are chosen by tokens. It says
        cuda:0 where no device is named, also on machines without one: all but cpu means auto.
        `add_bos_token` is whether what begins a text is read before a context; by default as the tokenizer
        has it, which of GPT-2 adds nothing.
        """
        super().__init__()
        self.run = load_run(pretrained, "cpu" if device == "cpu" else "auto")
        tokenizer = self.run.tokenizer
        if add_bos_token is None:
            add_bos_token = not tokenizer.pretrained or bool(tokenizer.template.prefix)
        self.scorer = answer_scorer(self.run, None if add_bos_token else ())

    def loglikelihood(self, requests: Sequence[HarnessRequest]) -> list[tuple[float, bool]]:
        """(log P of each continuation after its context, whether greedy decoding writes it)."""
        pairs = [
            (str(context), str(continuation)) for context, continuation in _arguments(requests)
        ]
        scores = self.scorer.score(pairs, greedy=True)
        return [(score.value, score.greedy) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest]) -> list[float]:
        """log P of each text, without its end; of a long one in windows, each token once."""
        if self.run.task != TASK:
            raise UsageError(
                f"a text by itself has a likelihood under a language model, but"
                f" {printable(str(self.run.folder))} is a model of {self.run.task}; choose tasks with answers"
            )
        special_ids = self.run.tokenizer.special_ids
        begin = special_ids.bos or (() if special_ids.eos is None else (special_ids.eos,))
        texts = self.run.tokenizer.encode([str(text) for (text,) in _arguments(requests)])
        scores = score_texts(self.run.model, texts, special_ids._replace(bos=begin, eos=None))
        return [score.complete for score in scores]

    def generate_until(self, requests: Sequence[HarnessRequest]) -> list[str]:
        """What the model writes after each context, up to the first of the strings `until`."""
        written = []
        for context, options in _arguments(requests):
            writer = AnswerWriter(self.run, decode_settings(options))
            prompt, _ = writer.fitting(str(context))
            written += writer.write([prompt])
        return written


def _arguments(requests: Sequence[HarnessRequest]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def decode_settings(options: Settings) -> dict[str, Any]:
    """The settings of decoding for the generation options of a task (`gen_kwargs`). Raises UsageError for one
    that we have not."""
    given = dict(options)
    until = given.pop("until", None) or []
    limit = next(
        (given.pop(name) for name in ("max_gen_toks", "max_new_tokens") if name in given), 0
    )
    settings: dict[str, Any] = {
        "stop": several_texts(until),
        "max_length": int(limit) or NEW_TOKENS,
    }
    sampling = given.pop("do_sample", False)
    known: dict[str, Any] = {
        name: given.pop(name) for name in ("temperature", "top_k", "top_p") if name in given
    }
    if given:
        raise UsageError(
            f"the generation option {printable(min(given))!r} is not known; known are until, max_gen_toks,"
            " do_sample, temperature, top_k and top_p"
        )
    if sampling and known.get("temperature") != 0:
        settings["strategy"] = "sample"
        settings.update(known)
    return settings


def main() -> None:
    """The command of the harness, to which this model is known."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
