"""The verb degeneration."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError, counted


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DegenerationOptions:
    """Options of degeneration."""

    output: str = "degeneration.png"
    """A new picture: .png, .svg, .html or .json (Vega-Lite)."""
    prompt_tokens: int = 16
    """Tokens of a prompt."""
    new_tokens: int | None = None
    """Tokens of each continuation, the human one too. By default 100, or what fits the model's context."""
    limit: int = 50
    """The most documents. Those too short for a prompt and a continuation are skipped."""
    strategies: str | None = None
    """Decoding strategies with commas between: greedy, sampling, or settings such as beam=5, top_p=0.95,
    greedy+repetition_penalty=1.2."""
    seed: int = 0
    """Seed of sampling."""
    samples_output: str | None = None
    """Also write every text with its token probabilities to this new file (.jsonl)."""


def degeneration(
    folder: str,
    /,
    *texts: Data,
    options: DegenerationOptions = DegenerationOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Compare a language model's texts with human texts.

    For each decoding strategy a table shows repetition, variety and probability. A chart shows the
    probability of each token.

    Args:
        folder: A run folder of a language model.
        texts: Human texts, in the same forms as for train. The beginning of each document is a prompt.
        settings: key=value for data.*.
        json: All numbers as one line of JSON.
    """
    given = read_settings(settings)
    if given.decode:
        raise UsageError(
            "--set can change data.* here, but not decode.*: each strategy says how it decodes; see"
            " --strategies"
        )
    from seqloom.workflows.analysis.degeneration import (
        HEADER,
        LEGEND,
        STRATEGIES,
        DegenerationConfig,
    )
    from seqloom.workflows.analysis.degeneration import degeneration as run_degeneration

    strategies: tuple[str, ...] = STRATEGIES
    if options.strategies is not None:
        strategies = tuple(name.strip() for name in options.strategies.split(","))
    config = DegenerationConfig(
        output=options.output,
        samples_output=options.samples_output,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        limit=options.limit,
        strategies=strategies,
        seed=options.seed,
    )
    report = run_degeneration(folder, texts, given.data, config)
    if json:
        put_json(report.summary())
        return
    new_tokens = counted(report.new_tokens, "token")
    title = (
        f"{counted(report.texts, 'text')}, {new_tokens} after a prompt of {report.prompt_tokens}"
    )
    put_table(title, report.table(), HEADER)
    put(LEGEND)
    put(f"probability of each token: {report.picture}")


VERB = Verb(degeneration, "seqloom degeneration runs/tales test.txt --strategies greedy,top_p=0.95")
