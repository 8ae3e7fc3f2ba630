"""Verbs that show how models work: explain, plot, exact, degeneration, probe, models."""

from seqloom.cli.understand import degeneration, exact, explain, models, plot, probe

VERBS = (explain.VERB, plot.VERB, exact.VERB, degeneration.VERB, probe.VERB, models.VERB)
