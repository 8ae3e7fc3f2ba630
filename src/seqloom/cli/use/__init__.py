"""Verbs that use a trained model: predict, generate, score, complete, rescore, evaluate."""

from seqloom.cli.use import complete, evaluate, generate, predict, rescore, score

VERBS = (evaluate.VERB, predict.VERB, generate.VERB, score.VERB, complete.VERB, rescore.VERB)
