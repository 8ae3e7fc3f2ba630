"""What tests of all folders share, and the quick subset of the tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from seqloom.native import library as native
from seqloom.native.build import SOURCES, kinds_here, library_of_kind

settings.register_profile("seqloom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqloom")
"""No timing decides a test."""

QUICK: dict[str, tuple[str, ...]] = {
    "laws/test_decodable_laws.py": (
        "[gru, attention]",
        "[lstm language model]",
        "[gpt, rotary]",
        "[2-gram]",
    ),
    "laws/test_encoder_laws.py": (),
    "laws/test_language_laws.py": ("[gru language model]", "[gpt, learned]", "[2-gram]"),
    "laws/test_mark_laws.py": ("[gpt2",),
    "laws/test_reader_laws.py": ("[bag of words-", "[bert-"),
    "laws/test_search_laws.py": ("[gru, attention]", "[2-gram]"),
    "laws/test_training_laws.py": (),
    "test_config.py": (),
    "test_examples.py": ("classifier",),
    "test_files.py": (),
    "test_protocols.py": (),
    "test_shapes.py": (),
    "docs": (),
    "cli/test_catalogue.py": (),
    "extension/test_plugins.py": (),
    "data/batching": (),
    "data/encoding": (),
    "data/formats": (),
    "data/images": (),
    "data/readers/test_conll.py": (),
    "data/readers/test_documents.py": (),
    "data/readers/test_labelled.py": (),
    "data/readers/test_squad.py": (),
    "decoding/test_generate.py": (),
    "decoding/test_logits_processors.py": (),
    "decoding/test_string_constraints.py": (),
    "evaluation/test_entity_f1.py": (),
    "evaluation/test_intervals.py": (),
    "evaluation/test_perplexity.py": (),
    "evaluation/test_word_errors.py": (),
    "explaining/test_leaderboard.py": (),
    "interop/test_families.py": ("[bert", "[gpt2"),
    "layers/outputs/test_softmax.py": (),
    "layers/recurrent/test_cells.py": ("lstm", "gru"),
    "layers/recurrent/test_packing.py": (),
    "layers/test_attention.py": (),
    "layers/test_crf.py": (),
    "layers/test_pooling.py": (),
    "layers/transformer/test_blocks.py": (),
    "layers/transformer/test_key_value_cache.py": (),
    "models/test_bag_of_words.py": (),
    "models/test_convolution.py": (),
    "models/test_gpt.py": (),
    "models/test_heads.py": (),
    "models/test_mlp.py": (),
    "models/ngrams/test_ngram.py": (),
    "native/test_library.py": (),
    "runs/test_run_folder.py": (),
    "runs/test_settings.py": (),
    "tasks/language_modeling/test_generate.py": (),
    "tasks/text_to_text/test_text_forms.py": (),
    "text/test_offsets.py": (),
    "text/test_tokenizers.py": (),
    "text/test_word_characters.py": (),
    "training/test_checkpoints.py": (),
    "training/test_loop.py": (),
    "training/test_optimisation.py": (),
    "workflows/compare": (),
}
"""The tests of `make quick`: files and folders, and which of their tests: those whose name contains one of
these words, or all where there are none. The rest of the files is not even imported."""

TESTS = Path(__file__).parent


def quick_words(path: Path) -> tuple[str, ...] | None:
    """Words of which the name of a quick test in this file has one; None where no test of it is quick."""
    relative = path.relative_to(TESTS)
    for candidate in (relative, *relative.parents):
        if candidate.as_posix() in QUICK:
            return QUICK[candidate.as_posix()]
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, files without quick tests are not imported: that alone takes most of a minute."""
    only_quick = config.option.markexpr == "quick" and collection_path.suffix == ".py"
    if only_quick and quick_words(collection_path) is None:
        return True
    return None  # as pytest would decide


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the quick tests."""
    for item in items:
        words = quick_words(item.path)
        if words is None or item.get_closest_marker("slow") is not None:
            continue
        if not words or any(word in item.name for word in words):
            item.add_marker(pytest.mark.quick)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models wait for a second thread more than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Collecting(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.INFO)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def notices() -> Iterator[list[str]]:
    """What seqloom logs during the test, line by line; a test may clear it."""
    package = logging.getLogger("seqloom")
    level, messages = package.level, list[str]()
    handler = _Collecting(messages)
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    yield messages
    package.removeHandler(handler)
    package.setLevel(level)


@pytest.fixture(params=kinds_here())
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The library for each kind of processor that this one can be."""
    if request.param == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor has no AVX-512")
    path = library_of_kind(SOURCES, request.param)
    monkeypatch.setattr(native, "library_path", lambda *_: path)
    native.library.cache_clear()
    assert native.library() is not None
    yield request.param
    native.library.cache_clear()
