"""Verbs that show how models work: explain, exact, degeneration, probe, models."""

from seqloom.cli.understand import degeneration, exact, explain, models, probe

VERBS = (explain.VERB, exact.VERB, degeneration.VERB, probe.VERB, models.VERB)
