"""What other programs call our settings, options and models: Hugging Face, fairseq, OpenNMT, JoeyNMT and
fastText.

A command line with such a name is understood as ours (`cli/familiar_options.py`), and a run file that has one
is told what to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

SETTINGS: dict[str, str] = {
    "train.learning_rate": "lr peak_lr",
    "train.max_steps": "max_update max_train_steps train_steps steps updates",
    "train.epochs": "epoch num_epochs num_train_epochs max_epoch",
    "train.batch_rows": "batch_size per_device_train_batch_size per_gpu_train_batch_size max_sentences",
    "decode.batch_rows": "batch_size per_device_eval_batch_size",
    "train.batch_tokens": "max_tokens max_tokens_per_batch",
    "train.warmup_steps": "warmup_updates learning_rate_warmup num_warmup_steps",
    "train.schedule": "lr_scheduler lr_scheduler_type scheduler scheduling lr_schedule",
    "train.clip_norm": "max_grad_norm clip grad_clip clip_grad_norm",
    "train.label_smoothing": "label_smoothing_factor",
    "train.beta2": "adam_beta2",
    "train.weight_decay": "wd",
    "train.evaluate_every": "eval_steps save_steps valid_steps validation_freq validate_interval_updates",
    "train.log_every": "logging_steps log_interval logging_freq report_every",
    "train.patience": "early_stopping_patience early_stop",
    "train.best": "metric_for_best_model best_checkpoint_metric early_stopping_metric",
    "train.window": "bptt tokens_per_sample block_size seq_len",
    "train.threads": "thread num_threads",
    "train.seed": "random_seed",
    "train.trackers": "report_to",
    "train.dtype=bfloat16": "bf16",
    "train.lora_rank": "lora_r",
    "train.word_vectors": "pretrained_vectors pretrainedvectors",
    "data.max_length": "max_seq_length max_seq_len max_source_length",
    "data.source": "source_lang src_lang s",
    "data.target": "target_lang tgt_lang t",
    "data.text": "text_column text_column_name",
    "data.label": "label_column label_column_name",
    "data.vocabulary": "vocab_size voc_limit max_vocab",
    "data.tokenizer": "bpe",
    "decode.beam": "num_beams beam_size beam_width",
    "decode.n_best": "nbest num_return_sequences n_hyps",
    "decode.length_penalty": "lenpen",
    "decode.max_length": "max_new_tokens max_len_b max_output_length",
    "decode.min_length": "min_new_tokens min_len min_output_length",
    "decode.top_k": "topk sampling_topk",
    "decode.top_p": "topp sampling_topp",
    "decode.no_repeat_ngram": "no_repeat_ngram_size block_ngram_repeat",
    "decode.strategy=sample": "do_sample sampling",
    "decode.strategy=greedy": "greedy",
    "decode.diversity": "diversity_penalty diverse_beam_strength",
    "decode.groups": "num_beam_groups diverse_beam_groups",
    "decode.stop": "stop_strings",
    "model.dropout": "dropout hidden_dropout_prob",
    "model.width": "width hidden_size hidden_dim rnn_size d_model n_embd dim",
    "model.layers": "layers num_layers n_layer num_hidden_layers nlayers",
    "model.heads": "heads num_heads n_head num_attention_heads nhead",
    "model.context": "context n_ctx n_positions",
    "model.cell": "cell rnn_type cell_type",
    "model.embedding_width": "embedding_width embedding_dim embedding_size emsize word_vec_size",
    "model.feed_forward_width": "ffn_dim intermediate_size transformer_ff",
    "model.encoder_layers": "encoder_layers enc_layers",
    "model.decoder_layers": "decoder_layers dec_layers",
    "model.bidirectional=true": "bidirectional brnn",
    "model.tie_output=true": "tied tie_embeddings share_decoder_input_output_embed",
}
"""A setting -> names of others for it; with a value where the name is a switch."""
OPTIONS: dict[str, str] = {
    "--model": "arch a model_type architecture",
    "--output-dir": "save_dir save_model model_dir",
    "--from": "model_name_or_path pretrained finetune_from_model",
    "--resume": "restore_file resume_from_checkpoint",
    "--validation": "validation_file valid_path valid dev valid_data",
    "--prompt": "prompts",
    "--output": "results_path output_file",
}
"""An option of ours -> names of others for it."""
ANSWERS: dict[str, str] = {
    "gradient_accumulation_steps update_freq accum_count batch_multiplier": (
        "--set train.batch_rows=N is the whole batch here, and --set train.accumulate=PARTS only splits it"
    ),
    "warmup_ratio": "write the number of steps: --set train.warmup_steps=N (by default a tenth of all)",
    "fp16 half": "write --set train.dtype=bfloat16; there is no float16",
    "optim optimizer": "the optimizer is AdamW; leave it out",
    "adam_beta1 adam_betas momentum": "the first beta is 0.9; --set train.beta2=0.98 is the second",
    "overwrite_output_dir overwrite": "a run folder is never overwritten; name another --output-dir",
    "do_train do_eval do_predict": "these are verbs: seqloom train, seqloom evaluate, seqloom predict",
    "save_total_limit keep_last_epochs keep_best_ckpts keep_checkpoint": (
        "the last and the best checkpoint are kept; leave it out"
    ),
    "criterion loss": "the task has its loss; --set train.label_smoothing=0.1 smooths it",
    "remove_bpe post_process": "texts come out as texts here; leave it out",
    "gpu gpus cuda no_cuda use_cuda": "write --set train.device=cpu or cuda (auto by default)",
    "alpha beam_alpha": (
        "n tokens are divided by n^α here, not by ((5 + n) / 6)^α, so another α is best: --set"
        " decode.length_penalty=1.0, the default, is the mean of a token"
    ),
    "max_sent_length": "longer texts are cut here, not left out: --set data.max_length=N",
    "output_dir": (
        "only verbs that train have it; import and export take the new folder as their last word, and predict"
        " has --output FILE"
    ),
    "nhid": (
        "write --set model.width=N, or for the feed-forward layers of a Transformer --set"
        " model.feed_forward_width=N"
    ),
    "train_from": (
        "--resume FOLDER goes on with a run that was stopped, and --from FOLDER begins a new run with"
        " its weights"
    ),
    "train_file train_data trainpref dataset_name src tgt input": (
        "name the files of the data after the task: seqloom train TASK FILE..."
    ),
    "share_all_embeddings share_vocab": "write --set model.share_embeddings=true, where the model has it",
    "fastmode num_workers dataloader_num_workers": "text is read ahead in any case; leave it out",
}
"""Names of others -> what to do where no setting means the same."""
MODEL_NAMES: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "lstm": (("recurrent_lm", "recurrent", "seq2seq"), {"cell": "lstm"}),
    "gru": (("recurrent_lm", "recurrent", "seq2seq"), {"cell": "gru"}),
    "rnn": (("recurrent_lm", "recurrent", "seq2seq"), {"cell": "elman"}),
    "elman": (("recurrent_lm", "recurrent", "seq2seq"), {"cell": "elman"}),
    "cnn": (("convolution",), {}),
    "attention": (("seq2seq", "gpt", "bert"), {}),
    "transformer": (("gpt", "bert", "vit"), {}),
    "gpt2": (("gpt",), {}),
    "roberta": (("bert",), {}),
    "bow": (("bag_of_words",), {}),
    "fasttext": (("bag_of_words",), {}),
    "n-gram": (("ngram",), {}),
    "skipgram": (("word2vec",), {"architecture": "skip-gram"}),
    "cbow": (("word2vec",), {"architecture": "cbow"}),
}
"""What people call a model -> the families it may be, of which a task takes its own, and fields of it."""


def _by_name(table: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for ours, names in table.items():
        for name in names.split():
            found.setdefault(name, []).append(ours)
    return found


SETTINGS_BY_NAME = _by_name(SETTINGS)
OPTION_BY_NAME = {name: ours[0] for name, ours in _by_name(OPTIONS).items()}
ANSWER_BY_NAME = {name: text for names, text in ANSWERS.items() for name in names.split()}


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """`; did you mean A or B?`, or nothing if nothing is near. `known`: a name -> how it is given."""
    spelled = {_plain(word): given for word, given in reversed(list(known.items()))}
    near = difflib.get_close_matches(_plain(name), spelled, n=3, cutoff=0.7)
    given = list(dict.fromkeys(spelled[word] for word in near))
    return f"; did you mean {' or '.join(given)}?" if given else ""


def near_names(name: str, known: Iterable[str]) -> str:
    """As `did_you_mean`, for names that are given as they are."""
    return did_you_mean(name, {word: word for word in known})


def _plain(name: str) -> str:
    return name[:100].strip("-").replace("-", "_").casefold()


def familiar_model(name: str, families: Iterable[str]) -> tuple[str, dict[str, object]]:
    """The first of the families that people call so, and the fields that make it that; a name of ours stays
    as it is."""
    able = tuple(families)
    if name in able or name.casefold() not in MODEL_NAMES:
        return name, {}
    meant, fields = MODEL_NAMES[name.casefold()]
    return next((family for family in able if family in meant), name), dict(fields)
