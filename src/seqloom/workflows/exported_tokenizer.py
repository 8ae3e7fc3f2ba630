"""The tokenizer of an exported model: it puts around a text what the model was trained to read, so that
transformers needs nothing but the files."""

from __future__ import annotations

from pathlib import Path

from seqloom import files
from seqloom.data.encoding.encode_words import space_begins_words
from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS, row_template
from seqloom.interop.config_options import Fields
from seqloom.interop.hub_origin import TOKENIZER_CONFIG, HubOrigin
from seqloom.interop.post_processor import (
    with_mask,
    with_prefix_space,
    with_special_entries,
    with_template,
    with_whole_texts,
)
from seqloom.models.bert import Bert
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.protocols import SpecialTokenTemplate, StoredTokenizer, context_of
from seqloom.runs import run_folder


def write_tokenizer(
    out: Path,
    run: run_folder.LoadedRun,
    origin: HubOrigin | None,
    *,
    trained: bool,
) -> None:
    """Writes its files. `origin`: the checkpoint that the model came from, if any; `trained`: whether it was
    trained here."""
    tokenizer = run.tokenizer
    run_folder.write_tokenizer(out, tokenizer)
    content = tokenizer.to_json()
    changes: Fields = {}
    if run.with_head is not None:
        content, changes = _below_head(content, run.with_head, tokenizer, origin)
    elif not tokenizer.pretrained:
        content, changes = _of_own(content, run)
    elif trained and run.task == "text-generation" and tokenizer.special_ids.bos:
        template = SpecialTokenTemplate(tokenizer.special_ids.bos)
        content = with_template(content, template, _names(tokenizer, template), segments=False)
    settings = {**files.read_json_object(out / TOKENIZER_CONFIG), **changes}
    bert = _bert_of(run)
    if bert is not None:
        # the tokenizer classes of BERT say so themselves, PreTrainedTokenizerFast does not
        segments = ("token_type_ids",) if bert.config.segments > 1 else ()
        names = ["input_ids", *segments, "attention_mask"]
        settings = {"model_input_names": names, **settings}
    if not tokenizer.pretrained and run.task != "fill-mask":
        # a text that spells a special token is text, as in training; but a mask is spelled
        settings["split_special_tokens"] = True
    files.write_json(out / TOKENIZER_CONFIG, settings)
    if content != tokenizer.to_json():
        files.write_atomic(out / run_folder.TOKENIZER, content.encode())


def _bert_of(run: run_folder.LoadedRun) -> Bert | None:
    """What reads its texts, where that is a BERT."""
    reader = run.model if run.with_head is None else run.with_head.encoder
    return reader if isinstance(reader, Bert) else None


def _of_own(content: str, run: run_folder.LoadedRun) -> tuple[str, Fields]:
    """Of a model without a task head, whose tokenizer seqloom trained: a language model reads `<s> a`, an
    encoder-decoder `a </s>`, a masked language model `<s> a </s>` with masks."""
    special_ids = run.tokenizer.special_ids
    template = SpecialTokenTemplate(special_ids.prefix, special_ids.separator, special_ids.suffix)
    changes: Fields = {}
    if run.task == "text-generation":
        template = SpecialTokenTemplate(special_ids.bos, special_ids.separator)
        # as transformers continues a batch of prompts
        changes["padding_side"] = "left"
    if (context := context_of(run.model)) is not None:
        changes["model_max_length"] = context
    if special_ids.mask is not None:
        content = with_mask(content, special_ids.mask, *run.tokenizer.pieces([special_ids.mask]))
    names = _names(run.tokenizer, template)
    bert = _bert_of(run)
    segments = bert is not None and bert.config.segments > 1
    return with_template(with_whole_texts(content), template, names, segments=segments), changes


def _names(tokenizer: StoredTokenizer, template: SpecialTokenTemplate) -> dict[int, str]:
    ids = [i for part in template for i in part]
    return dict(zip(ids, tokenizer.pieces(ids), strict=True))


def _below_head(
    content: str, model: EncoderWithHead, tokenizer: StoredTokenizer, origin: HubOrigin | None
) -> tuple[str, Fields]:
    """What the rows of the training had: special tokens, the space before words with tags, the maximum
    length. A tokenizer that came with the same head does so already."""
    changes: Fields = {}
    encoder_size = model.config.encoder["vocabulary_size"]
    if not tokenizer.pretrained:
        template = row_template(
            tokenizer.special_ids, model.model_type, True, tokenizer.vocabulary_size
        )
        around = SpecialTokenTemplate(*template)
        segments = model.config.encoder.get("segments", 1) > 1
        content = with_template(content, around, _names(tokenizer, around), segments=segments)
        if model.context is not None:
            changes["model_max_length"] = model.context
    elif encoder_size > tokenizer.vocabulary_size:
        content, names = with_special_entries(content, tokenizer.vocabulary_size, CAUSAL_MARKS)
        beyond = ((i,) for i in range(tokenizer.vocabulary_size, encoder_size))
        content = with_template(content, SpecialTokenTemplate(*beyond), names, segments=False)
    architectures = [] if origin is None else origin.architectures()
    came_with_head = any("TokenClassification" in name for name in architectures)
    if model.config.kind == "tagging" and space_begins_words(tokenizer) and not came_with_head:
        content = with_prefix_space(content)
        changes["add_prefix_space"] = True
    return content, changes
