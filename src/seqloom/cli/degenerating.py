"""The verb degeneration."""

from __future__ import annotations

from seqloom.cli.options import Data, Flag, Settings, reading
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError


def degeneration(
    folder: str,
    /,
    *texts: Data,
    output: str = "degeneration.png",
    prompt_tokens: int = 16,
    new_tokens: int | None = None,
    limit: int = 50,
    strategies: str | None = None,
    seed: int = 0,
    samples_output: str | None = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Show how a language model's texts differ from people's: repetition, variety and probability by
    strategy, as a table and a chart.

    Args:
        folder: A run folder of a language model.
        texts: Human texts, in the same forms as for train. The beginning of each document is a prompt.
        output: A new picture: .png, .svg, .html or .json (Vega-Lite).
        prompt_tokens: Tokens of a prompt.
        new_tokens: Tokens that each strategy and the person go on for; by default 100, or what fits the
            model's context.
        limit: So many documents; those too short for prompt and continuation are passed over.
        strategies: With commas between: greedy, sampling, or settings such as beam=5, top_p=0.95,
            greedy+repetition_penalty=1.2.
        seed: Of sampling.
        samples_output: Also write every text with its token probabilities to this new file (.jsonl).
        settings: key=value for data.*.
        json: All numbers as one JSON line.
    """
    given, decode, _ = reading(settings)
    if decode:
        raise UsageError(
            "--set can change data.* here, but not decode.*: each strategy says how it decodes; see"
            " --strategies"
        )
    from seqloom.workflows.analysis.degeneration import HEADER, LEGEND, STRATEGIES, DegenerationConfig
    from seqloom.workflows.analysis.degeneration import degeneration as run_degeneration

    config = DegenerationConfig(
        output=output,
        samples_output=samples_output,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        limit=limit,
        strategies=STRATEGIES if strategies is None else [name.strip() for name in strategies.split(",")],
        seed=seed,
    )
    report = run_degeneration(folder, texts, given, config)
    if json:
        put_json(report.summary())
        return
    title = f"{report.texts:,} texts, {report.new_tokens} tokens after a prompt of {report.prompt_tokens}"
    put_table(title, report.table(), HEADER)
    put(LEGEND)
    put(f"probability of each token: {report.picture}")


VERBS = (degeneration,)
