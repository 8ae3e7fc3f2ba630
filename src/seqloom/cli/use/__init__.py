"""Verbs that use a trained model: predict, generate, score, complete, rescore, evaluate, prompt, serve."""

from seqloom.cli.use import complete, evaluate, generate, predict, prompt, rescore, score, serve

VERBS = (
    *(evaluate.VERB, predict.VERB, generate.VERB, score.VERB),
    *(complete.VERB, rescore.VERB, prompt.VERB, serve.VERB),
)
