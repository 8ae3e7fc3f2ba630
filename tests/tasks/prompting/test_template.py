"""Templates in promptsource's form: what they may say, and what they may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqloom.errors import DataError, UsageError
from seqloom.tasks.prompting.prompt_rows import PromptRow
from seqloom.tasks.prompting.template import (
    PromptTemplate,
    RenderedRow,
    our_templates,
    read_template,
    render,
)

FILE = """\
dataset: toy
templates:
  0c1: !Template
    answer_choices: no ||| yes
    id: 0c1
    jinja: "{{premise}} So {{ hypothesis }}? ||| {{ answer_choices[label] }}"
    metadata: !TemplateMetadata
      original_task: true
    name: so
    reference: ''
  0c2: !Template
    answer_choices: null
    jinja: "Say it again: {{premise}} ||| {{premise}}"
    name: again
"""


def template(jinja: str, choices: str | None = None) -> PromptTemplate:
    return PromptTemplate(name="t", path="t.yaml", jinja=jinja, answer_choices=choices)


def one(
    jinja: str,
    choices: str | None = None,
    fields: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **row: Any,
) -> RenderedRow:
    (rendered,) = render(
        template(jinja, choices), [PromptRow(row, "rows.jsonl", 7)], fields or {}, labels
    )
    return rendered


def test_a_template_of_a_file_is_found_by_its_name_or_id(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(FILE)
    for name in ("so", "0c1"):
        found = read_template(str(path), name)
        assert (found.name, found.answer_choices) == ("so", "no ||| yes")
    row = PromptRow({"premise": "It rains.", "hypothesis": "it is wet", "label": 1}, "a.csv", 2)
    (rendered,) = render(found, [row], {}, None)
    assert rendered.prompt == "It rains. So it is wet?"
    assert rendered.targets == ("yes",)
    assert rendered.choices == ("no", "yes")
    assert rendered.content_free == "N/A So N/A?"
    assert read_template(str(path), "again").answer_choices is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "has 2 templates; say which with --name: 'so', 'again'"),
        ("other", "0 are named 'other'"),
    ],
)
def test_a_file_of_several_templates_needs_a_name(
    tmp_path: Path, name: str | None, message: str
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(FILE)
    with pytest.raises(UsageError, match=message):
        read_template(str(path), name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("templates: !!python/object/apply:os.getcwd []", "tags are not allowed"),
        ("templates: {a: &x {jinja: b}, c: *x}", "aliases are not allowed"),
        ("- a", "must have `templates:`"),
        ("templates: {a: {jinja: [b]}}", "must have `jinja`, a text"),
        ("templates: {a: {jinja: '{{ b'}}", None),
    ],
)
def test_a_file_holds_nothing_but_templates(
    tmp_path: Path, content: str, message: str | None
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    if message is None:
        with pytest.raises(UsageError, match="is not Jinja that can be used"):
            render(read_template(str(path), None), [PromptRow({}, "a", 1)], {}, None)
        return
    with pytest.raises(UsageError, match=message):
        read_template(str(path), None)


def test_our_templates_are_six_and_can_be_read() -> None:
    assert our_templates() == [
        *("choice", "entailment", "paraphrase", "question", "sentiment", "topic")
    ]
    for name in our_templates():
        assert read_template(name, None).task is not None


def test_a_missing_file_names_our_templates() -> None:
    with pytest.raises(UsageError, match=r"must be a YAML file, or one of choice, entailment"):
        read_template("missing.yaml", None)


@pytest.mark.parametrize(
    ("jinja", "problem"),
    [
        ("{{ ''.__class__.__mro__ }} ||| x", "unsafe"),
        ("{{ words.append('x') }} ||| x", "unsafe"),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "longer",
        ),
        ("{{ 'a' * 3000000000 }} ||| x", "needs more than"),
        ("{{ 'ab' * 600000 }} ||| x", "at most 1,000,000 characters"),
        ("{{ missing }} ||| x", "'missing' is undefined"),
        ("{{ words[5] }} ||| x", "list object has no element 5"),
        ("{{ text.nothing() }} ||| x", "has no attribute 'nothing'"),
    ],
)
def test_a_template_can_do_no_harm(jinja: str, problem: str) -> None:
    with pytest.raises(DataError, match=rf"rows.jsonl:7: .*{problem}") as error:
        one(jinja, words=["a"], text="b")
    assert "\n" not in str(error.value)


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # signals are seen between steps of Python, of which a power is one
    monkeypatch.setattr("seqloom.tasks.prompting.template.SECONDS", 1)
    with pytest.raises(UsageError, match="must be rendered in bounded time and memory"):
        one("{{ (9 ** (9 ** 9)) % 7 }} ||| x", text="b")


def test_bars_in_the_data_separate_nothing() -> None:
    rendered = one(
        "{{text}} ||| {{answer_choices[0]}}", "{{a}} ||| {{b}}", text="x ||| y", a="p|||q", b="r"
    )
    assert rendered.prompt == "x ||| y"
    assert rendered.choices == ("p|||q", "r")
    assert rendered.targets == ("p|||q",)


def test_fields_are_columns_or_expressions() -> None:
    fields = {"text": "2", "number": "label - 1", "both": "row['2'] ~ '!'"}
    row = PromptRow({"2": "hello", "label": 3}, "a.csv", 1)
    (rendered,) = render(template("{{text}} {{number}} {{both}} ||| x"), [row], fields, None)
    assert rendered.prompt == "hello 2 hello!"


@pytest.mark.parametrize(
    ("jinja", "choices", "fields"),
    [
        ("{{text}} ||| x", None, {"txt": "2"}),
        # a field that only its own definition names
        ("{{text}} ||| x", "a ||| b", {"txt": "txt ~ '!'"}),
    ],
)
def test_a_field_that_nothing_reads_is_refused(
    jinja: str, choices: str | None, fields: dict[str, str]
) -> None:
    row = PromptRow({"2": "hello", "text": "a", "txt": "b"}, "a.csv", 1)
    with pytest.raises(UsageError, match="reads no txt, which --field defines; leave it out"):
        render(template(jinja, choices), [row], fields, None)


@pytest.mark.parametrize(
    ("jinja", "choices", "fields"),
    [
        ("x ||| y", "{{word}} ||| b", {"word": "2"}),
        ("{{both}} ||| y", None, {"word": "2", "both": "word ~ '!'"}),
        # of the shots, which are balanced by it
        ("x ||| y", None, {"label": "2"}),
    ],
)
def test_a_field_is_read_by_choices_other_fields_and_shots(
    jinja: str, choices: str | None, fields: dict[str, str]
) -> None:
    row = PromptRow({"2": "hello"}, "a.csv", 1)
    assert render(template(jinja, choices), [row], fields, None)


def test_labels_are_numbered_and_named() -> None:
    rows = [PromptRow({"label": label}, "a.csv", 1) for label in ("2", "1")]
    jinja = template("{{label}} {{label_name}} ||| {{labels[label]}}", "{{labels|join('|||')}}")
    found = render(jinja, rows, {}, {"1": "World", "2": "Sports"})
    assert [one.prompt for one in found] == ["1 Sports", "0 World"]
    assert [one.targets for one in found] == [("Sports",), ("World",)]
    assert found[0].choices == ("World", "Sports")
    with pytest.raises(DataError, match="the label '2' is none of --labels 1"):
        render(jinja, rows, {}, {"1": "World"})


def test_labels_without_names_are_those_of_the_data() -> None:
    rows = [PromptRow({"label": label}, "a.csv", 1) for label in (10, 9, 9)]
    jinja = template("x ||| {{label_name}}", "{{labels|join('|||')}}")
    assert render(jinja, rows, {}, None)[0].choices == ("9", "10")


def test_an_empty_prompt_is_no_item() -> None:
    rows = [PromptRow({"question": kind}, "a.csv", 1) for kind in ("cause", "effect")]
    found = render(template("{% if question == 'cause' %}Why? ||| x{% endif %}"), rows, {}, None)
    assert [one.row for one in found] == rows[:1]


def test_the_filters_of_promptsource_are_there_and_fixed() -> None:
    jinja = "{{ [1, 2, 3, 4, 5, 6, 7, 8] | choice }} {{ ['b', 'a', 'b'] | most_frequent }} ||| x"
    assert one(jinja, text="a") == one(jinja, text="a")
    assert one(jinja, text="a").prompt.endswith("['b']")


def test_e2e_templates_update_a_dictionary_of_their_own() -> None:
    jinja = "{% set v = {'a': 1} %}{% set _ = v.update({'a': text}) %}{{ v.a }} ||| x"
    assert one(jinja, text="hello").prompt == "hello"
