"""The command lines that are recorded: every verb, every task, every family of models."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command line, what it reads from standard input, and what is done before it."""

    name: str
    words: tuple[str, ...]
    stdin: bytes = b""
    prepare: Callable[[Path], None] | None = None
    """Makes what the command is about in the folder where it runs."""
    fails: bool = False
    """Whether another exit code than 0 is expected."""
    interrupt: str | None = None
    """Ctrl-C comes as soon as there is a file of this pattern; what is said until then is not kept."""


def command(
    name: str,
    line: str,
    stdin: bytes | str = b"",
    prepare: Callable[[Path], None] | None = None,
    fails: bool = False,
    interrupt: str | None = None,
) -> Command:
    """`line` as at a shell, without `seqloom`."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    return Command(name, tuple(shlex.split(line)), given, prepare, fails, interrupt)


def commands(
    text: str, stdin: Mapping[str, str] | None = None, interrupted: Mapping[str, str] | None = None
) -> list[Command]:
    """A command for each line `NAME: WORDS`; a line that begins with blanks goes on with the one before it.

    `stdin`: what those of these names read; `interrupted`: at which file they get Ctrl-C.
    """
    stdin, interrupted = stdin or {}, interrupted or {}
    found = []
    for line in text.strip().replace("\n    ", " ").split("\n"):
        name, _, words = line.partition(": ")
        stopped = interrupted.get(name)
        found.append(
            command(name, words, stdin.get(name, ""), fails=stopped is not None, interrupt=stopped)
        )
    unknown = (stdin.keys() | interrupted.keys()) - {one.name for one in found}
    assert not unknown, unknown
    return found


def sets(section: str, settings: str) -> str:
    """`a=1 b=2` as options --set section.a=1 --set section.b=2."""
    return " ".join(f"--set {section}.{one}" for one in settings.split())


def training(steps: int = 8, **more: object) -> str:
    """The options of a tiny training."""
    kept = {
        "max_steps": steps,
        "evaluate_every": steps // 2,
        "batch_rows": 16,
        "learning_rate": 0.03,
        "seed": 7,
    }
    return sets("train", " ".join(f"{key}={value}" for key, value in (kept | more).items()))


WORDS = "--set data.tokenizer=words"
S2S_WIDTHS = sets("model", "width=8 encoder_width=8 embedding_width=8 readout_width=8")
S2S = S2S_WIDTHS + " " + sets("model", "attention_width=8")
ENCODER_DECODER = sets("model", "width=8 encoder_layers=1 decoder_layers=1 heads=2")
LSTM = sets("model", "width=8 embedding_width=8 layers=1")
GPT = sets("model", "width=8 layers=1 heads=2 context=16")
BERT = sets("model", "width=8 layers=1 heads=2 context=32")
CNN = sets("model", "embedding_width=8 windows=[2,3] maps=4")
RNN = sets("model", "embedding_width=8 width=8")
VIT = sets("model", "image_size=8 patch_size=4 channels=1 width=8 layers=1 heads=2")
PAIRS = "data/train.tsv --validation data/val.tsv"
BOOK = "data/book.txt --validation data/dev.txt"
SENTENCES = "the red dog sees the cat\n\nthe boat likes the old house\n"

VERB_NAMES = (
    *(
        "train",
        "evaluate",
        "predict",
        "generate",
        "score",
        "ensemble",
        "complete",
        "rescore",
        "prompt",
        "degeneration",
    ),
    *("exact", "explain", "check", "models", "probe", "compare", "export", "import", "demo"),
)
FAMILIES = (
    *(
        "ngram",
        "recurrent_lm",
        "seq2seq",
        "transformer",
        "t5",
        "bert",
        "gpt",
        "vit",
        "bag_of_words",
    ),
    *("mlp", "convolution", "recurrent"),
)

SAYS = [
    *commands("help: --help\nversion: --version"),
    *(command(f"help-{verb}", f"{verb} --help") for verb in VERB_NAMES),
    *(command(f"models-{family}", f"models {family} --json") for family in FAMILIES),
    *commands("""
models: models --json
models-table: models
probe: probe recall --cells elman,gru,attention --distances 3 --steps 20 --width 4 --output probed --json
probe-again: probe recall --cells elman,gru,attention --distances 3 --steps 20 --width 4 --output probed
"""),
]

TRANSLATION = commands(
    f"""
check-translation: check translation {PAIRS} --test data/test.tsv {WORDS} --json
check-translation-table: check translation {PAIRS} {WORDS}
train-seq2seq: train translation {PAIRS} --output-dir s2s {WORDS} {S2S} {training(30)} --json
evaluate-seq2seq: evaluate s2s data/test.tsv --outputs s2s-outputs.txt --json
evaluate-seq2seq-table: evaluate s2s data/test.en data/test.de --set decode.beam=1
predict-seq2seq: predict s2s - --set decode.n_best=2 --json
predict-seq2seq-rules: predict s2s data/test.en --trace trace.txt --set decode.beam=4
    --set decode.groups=2 --set decode.n_best=2 --set decode.no_repeat_ngram=2 --set decode.ban=[hund]
    --set decode.begin=das --set decode.min_length=4 --json
predict-seq2seq-sampled: predict s2s data/test.en --set decode.strategy=sample --set decode.top_k=9
    --set decode.top_p=0.9 --set decode.temperature=0.8 --set decode.seed=5 --set decode.n_best=2 --json
explain-seq2seq: explain s2s 'the red dog sees the cat' --output attention.json --json
explain-seq2seq-target: explain s2s 'the red dog' --target 'das rot hund' --output attention.svg
gradient-flow: explain s2s data/test.tsv --gradient-flow --rows 4 --output gradient-flow.json --json
exact: exact s2s data/test.en --limit 2 --beams 1,3 --nodes 300 --max-length 5 --json
train-interrupted: train translation {PAIRS} --output-dir on {WORDS} {S2S}
    {training(300, evaluate_every=20)}
train-resumed: train --resume on --json
train-seq2seq-lstm: train translation data/train.en data/train.de --output-dir lstm --model seq2seq:tiny
    {WORDS} {S2S_WIDTHS} --set model.cell=lstm --set model.attention=bilinear --set model.attend_from=current
    {training(8, best="chrf")}
train-transformer: train translation data/train.jsonl --output-dir tf --model transformer:tiny
    {ENCODER_DECODER} --set data.vocabulary=300 {training(8, accumulate=2)} --json
predict-transformer: predict tf - --set decode.beam=2 --json
explain-transformer: explain tf 'the red dog' --output heads.json --json
train-t5: train translation {PAIRS} --output-dir t5 --model t5:tiny {ENCODER_DECODER} {WORDS}
    {training(8)} --json
evaluate-t5: evaluate t5 data/test.tsv --json
export-t5: export t5 t5-hub --json
predict-t5-hub: predict t5-hub data/test.en --set decode.max_length=6 --json
import-t5: import t5-hub t5-back --json
export-onnx: export s2s s2s-onnx --format onnx --json
train-run-file: train --config tf/run.yaml --output-dir tf2 --set train.max_steps=2 --json
""",
    stdin={"predict-seq2seq": SENTENCES, "predict-transformer": SENTENCES},
    interrupted={"train-interrupted": "on/checkpoint-*0"},
)
"""Pairs: check, train, stop and resume, evaluate, predict, look, search, in and out."""

LANGUAGE = commands(
    f"""
check-text: check text-generation {BOOK} --test data/held.txt {WORDS} --json
train-ngram: train text-generation {BOOK} --output-dir kn --model ngram:trigram {WORDS}
    --set data.vocabulary=300 --json
train-recurrent-lm: train text-generation {BOOK} --output-dir rnn --model recurrent_lm:tiny {WORDS} {LSTM}
    --set model.maxent=2 --set model.maxent_size=300 --set data.vocabulary=300
    {training(12, batch_rows=4, window=8)} --json
train-gpt: train text-generation {BOOK} --output-dir gpt --model gpt:tiny {WORDS} {GPT}
    --set data.vocabulary=300 {training(12)} --json
train-gpt-characters: train text-generation data/book.txt --output-dir chars --model gpt {GPT}
    --set data.tokenizer=characters --set data.document=file --set model.positions=rotary {training(6)}
    --json
evaluate-ngram: evaluate kn data/held.txt --json
evaluate-recurrent-lm: evaluate rnn data/held.txt --json
evaluate-gpt: evaluate gpt data/held.txt --stride 4 --json
evaluate-gpt-table: evaluate chars data/held.txt --set data.document=file
score-ngram: score kn data/held.txt --json
score-texts: score rnn --text 'the red dog' --text 'dog red the' --prompt 'the'
score-tokens: score gpt --tokens --text 'the red dog sees the cat.' --json
score-pairs: score gpt data/minimal.jsonl --pairs good,bad --by kind --beside rnn --beside kn --json
generate-sampled: generate gpt --prompt 'the red' --prompt 'the' --set decode.seed=3
    --set decode.top_p=0.9 --set decode.max_length=12 --json
generate-beam: generate rnn --prompt 'the red' --set decode.strategy=beam --set decode.beam=3
    --set decode.max_length=8 --set decode.n_best=2 --trace generated.txt --json
generate-stream: generate kn --prompt 'the red' --set decode.max_length=12 --set decode.stop=[dog,cat]
    --set decode.repetition_penalty=1.2
generate-file: generate gpt data/prompts.txt --set decode.max_length=6 --set decode.min_p=0.02 --json
complete: complete gpt 'the re' --n 3 --words 2 --json
complete-lines: complete kn
ensemble: ensemble gpt rnn kn --tune data/dev.txt --output-dir mixed --json
ensemble-weights: ensemble gpt kn --weights 1,3 --output-dir mixed2
evaluate-ensemble: evaluate mixed data/held.txt --json
generate-ensemble: generate mixed --prompt 'the' --set decode.max_length=6 --json
rescore: rescore kn data/nbest.jsonl --beside rnn --tune data/nbest-dev.jsonl --output rescored.jsonl
    --json
rescore-table: rescore gpt data/nbest.jsonl --weights given=1,lm=2,words=-1 --metric cer
rescore-unknown: rescore kn data/nbest-unknown.jsonl
prompt: prompt gpt data/reviews-test.csv --template sentiment --shots 1 --examples data/reviews.csv --orders 2
    --too-long cut --json
degeneration: degeneration rnn data/held.txt --prompt-tokens 2 --new-tokens 4 --limit 5
    --strategies greedy,beam=2,top_p=0.9 --output degeneration.json --samples-output samples.jsonl --json
exact-language: exact gpt --prompt 'the red' --beams 1,2 --nodes 200 --max-length 4 --json
gradient-flow-language: explain rnn data/held.txt --gradient-flow --rows 4 --output flow.json --json
export-arpa: export kn kn.arpa --json
import-arpa: import kn.arpa kn-back --json
score-arpa: score kn-back data/held.txt --json
export-gpt: export gpt gpt-hub --json
generate-gpt-hub: generate gpt-hub --prompt 'the red' --set decode.max_length=6 --set decode.strategy=beam
    --set decode.beam=1 --json
import-gpt: import gpt-hub gpt-back --dtype bfloat16
train-recurrent-lm-more: train text-generation {BOOK} --output-dir rnn2 --model recurrent_lm {LSTM}
    --set model.cell=gru --set model.output=adaptive --set model.output_cutoffs=[100]
    --set model.tie_output=false --set data.vocabulary=280 {training(6, batch_rows=4)} --json
""",
    stdin={"complete-lines": "the d\nthe red \n"},
)
"""Language models."""

READING = commands(
    f"""
check-labels: check text-classification data/reviews.csv --test data/reviews-test.csv
    --model bag_of_words:tiny --json
train-bag: train text-classification data/reviews.csv --output-dir bag --model bag_of_words:tiny
    --set model.width=8 --set model.features=tf-idf {WORDS} {training(20)} --json
evaluate-bag: evaluate bag data/reviews-test.csv --outputs bag.txt --json
train-bag-topics: train text-classification data/topics.tsv --output-dir topics --model bag_of_words
    --set model.width=8 --set model.ngrams=2 --set model.buckets=50 --set data.label_separator=| {WORDS}
    {training(12)} --json
predict-topics: predict topics data/topics-test.tsv --json
train-cnn: train text-classification data/reviews.fasttext --output-dir cnn --model convolution:tiny
    --set data.format=fasttext {CNN} {WORDS} {training(20)} --json
evaluate-cnn-table: evaluate cnn data/reviews-test.fasttext
predict-cnn: predict cnn data/reviews-test.input.txt --set data.format=text --json
train-entails-bert: train text-classification data/entails.tsv --output-dir entails --model bert:tiny
    {BERT} {WORDS} {training(12, layer_decay=0.9)} --json
predict-entails: predict entails data/entails-test.tsv
export-entails: export entails entails-hub --json
train-similar: train sentence-similarity data/alike.csv --output-dir alike --model recurrent:tiny {RNN}
    {WORDS} {training(12)} --json
evaluate-similar: evaluate alike data/alike-test.csv --json
predict-similar: predict alike data/alike-test.csv --json
train-similar-hub: train sentence-similarity data/alike.csv --output-dir alike-hub --from data/hub-vectors
    --set head.pair=cosine --set train.max_steps=4 --json
train-tags: train token-classification data/tags.conllu --output-dir tags --model recurrent:tiny {RNN}
    --set model.characters=convolution --set model.character_width=4 --set model.character_maps=4
    {training(20)} --json
evaluate-tags: evaluate tags data/tags-test.conllu --json
predict-tags: predict tags data/tags-test.conllu
train-tags-crf: train token-classification data/tags.bio --output-dir crf --model convolution:tiny {CNN}
    --set model.centred=true --set model.windows=[1,3] --set head.crf=true --set data.format=conll
    {training(12)} --json
evaluate-tags-crf: evaluate crf data/tags-test.bio --json
predict-tags-crf: predict crf data/tags-test.bio --json
train-questions: train question-answering data/squad.json --output-dir squad --model bert:tiny {BERT}
    {WORDS} {training(12)} --json
evaluate-questions: evaluate squad data/squad-test.json --json
predict-questions: predict squad data/squad-test.json --json
train-questions-t5: train question-answering data/squad.json --output-dir squad-t5 --model t5:tiny
    --set model.width=8 --set model.heads=2 --set model.encoder_layers=1 {WORDS} {training(4)} --json
train-choices: train multiple-choice data/choices.jsonl --output-dir choices --model gpt:tiny {GPT}
    --set model.context=32 {WORDS} {training(12)} --set head.lm_weight=0.5 --json
evaluate-choices: evaluate choices data/choices-test.jsonl --json
predict-choices: predict choices data/choices-test.jsonl --json
check-choices: check multiple-choice data/choices.jsonl --model bag_of_words:tiny --json
check-tags: check token-classification data/tags.bio --model recurrent:tiny --set data.format=conll
train-from-run: train text-classification data/reviews.csv --output-dir tuned --from entails
    --set train.max_steps=4 --set train.freeze=[encoder.embedding] --json
predict-tuned: predict --from tuned data/reviews-test.input.txt --set data.format=text --json
compare: compare text-classification data/reviews.csv --test data/reviews-test.csv
    --models bag_of_words:tiny+width=4,convolution:tiny+maps=2 --output-dir compared --seeds 2 --grid 3
    {WORDS} --set train.max_steps=9 --set train.batch_rows=16 --json
predict-masks: predict data/hub-bert - --set decode.n_best=2 --json
evaluate-masks: evaluate data/hub-bert data/held.txt --json
predict-vectors: predict data/hub-vectors data/prompts.txt --json
evaluate-vectors: evaluate data/hub-vectors data/alike-test.csv --json
import-bert: import data/hub-bert bert --json
export-bert: export bert bert-hub --shard-size 1 --json
""",
    stdin={"predict-masks": "the red [MASK] sees the dog .\n[MASK] cat\n"},
)
"""Labels, scores, tags, answers, choices; what encoders are for."""

IMAGES = commands(f"""
train-vit: train image-classification data/images.npz --output-dir vit --model vit:tiny {VIT}
    --set train.shift=1 {training(16)} --json
evaluate-vit: evaluate vit data/images-test-idx3-ubyte data/images-test-labels-idx1-ubyte
    --outputs vit.txt --json
predict-vit: predict vit data/images-test.npz --json
train-patches: train masked-image-modeling data/images-idx3-ubyte --output-dir patches --model vit:tiny
    {VIT} {training(8)} --json
evaluate-patches: evaluate patches data/images-test.npz --json
train-vit-from: train image-classification data/images-idx3-ubyte data/images-labels-idx1-ubyte
    --from patches --output-dir vit2 --set train.max_steps=4 --json
export-vit: export vit vit-hub --json
predict-vit-hub: predict vit-hub data/images-test.npz
""")
"""Images."""

DEMO = commands("""
demo: demo --output-dir demo --steps 3 --json
""")
"""By itself, for it takes as long as twenty others."""

CHAINS: dict[str, list[Command]] = {
    "says": SAYS,
    "translation": TRANSLATION,
    "language": LANGUAGE,
    "reading": READING,
    "images": IMAGES,
    "demo": DEMO,
}
"""Chains of commands: each command may use what those before it in its chain have made."""
