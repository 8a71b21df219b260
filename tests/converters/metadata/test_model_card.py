"""Front matter: held against PyYAML (BaseLoader: every scalar stays text), with what is outside the subset noted."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ggferry.converters.metadata.model_card import MAX_CARD, front_matter, read_card
from ggferry.formats.errors import NotFoundError


def same(ours: object, theirs: object) -> bool:
    """Equal, where our None is one of YAML's spellings of null, which BaseLoader leaves as text."""
    if ours is None:
        return theirs in ("", "~", "null", "Null", "NULL")
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and set(ours) == set(theirs) and all(same(ours[k], theirs[k]) for k in ours)
    return ours == theirs


CARD = """---
license: apache-2.0  # SPDX
license_name: 'it''s free'
language:
- en
- no
-   "de"
tags: [text-generation, "a, b", 'c']
pipeline_tag: [
  x,   # why not
  y
]
datasets:
  - org/one
  - https://example.org/two#frag
version: 1.10
base_model: meta-llama/Llama-2-7b-hf
description: >-
  Folded over
  two lines.

  A paragraph.
notes: |
  kept
    as is

widget:
- text: "hello \\u00e9 \\"quoted\\""
  example_title: one
- text: two three?
extra_gated_fields:
  Company: text
  Country:
    type: select
    options:
      - a
      - b
empty:
nothing: null
plain text: over
  two lines
inference: {}
model-index:
- name: x
  results:
  - task:
      type: text-generation
    metrics:
    - type: acc
      value: 12.5
---
# Body
license: not this
"""


def test_a_real_cards_shape() -> None:
    card, notes = front_matter(CARD)
    assert notes == ()
    theirs = yaml.load(CARD.split("---\n")[1], Loader=yaml.BaseLoader)
    assert same(card, theirs | {"empty": "", "nothing": "null"})
    assert card["language"] == ["en", "no", "de"] and card["version"] == "1.10"
    assert card["description"] == "Folded over two lines.\nA paragraph."
    assert card["notes"] == "kept\n  as is\n" and card["nothing"] is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a: &anchor x", "anchor"),
        ("a: *alias", "anchor"),
        ("a: !!str x", "tag"),
        ("a: [b", "expected"),
        ("a: 'x' y", "expected"),
        ('a: "\\q"', "escape"),
        ("a: b: c", "mapping values"),
        ("[a]: b", "not text"),
        ("a:\n" + "".join("  " * n + "b:\n" for n in range(1, 20)), "nested deeper"),
        ("a: " + "[" * 20000, "nest"),
    ],
)
def test_what_is_no_card_is_not_read_and_said(line: str, reason: str) -> None:
    card, notes = front_matter(f"---\nbefore: 1\n{line}\nafter: 2\n---\n")
    (note,) = notes
    assert card == {} and reason in note and re.search(r"line [2-9]|line 1\d", note), notes


def test_of_a_key_given_twice_the_first_is_kept() -> None:
    card, notes = front_matter("---\na: x\nb:\n  c: y\n  c: z\na: w\n---\n")
    assert card == {"a": "x", "b": {"c": "y"}}
    assert [note.split(":")[0] for note in notes] == ["README.md line 5", "README.md line 6"]


def test_what_is_no_mapping() -> None:
    assert "not a mapping" in front_matter("---\njust text\n---\n")[1][0]
    assert front_matter("---\n# nothing\n---\n") == ({}, ())


def test_no_front_matter() -> None:
    for text in ("", "# Title\n", "--- \nx", "text\n---\na: b\n---\n", "----\na: b\n---\n"):
        assert front_matter(text)[0] == {}
    assert "does not close" in front_matter("---\na: b\n")[1][0]
    assert front_matter("\ufeff---\r\na: b\r\n---\r\n") == ({"a": "b"}, ())
    assert front_matter("---\n---\n") == ({}, ())


def test_notes_do_not_flood() -> None:
    _, notes = front_matter("---\n" + "x: 1\n" * 1000 + "---\n")
    assert len(notes) == 20


piece = st.sampled_from(
    [
        "a",
        "b:",
        "c: d",
        "- ",
        "-",
        "'x'",
        '"y"',
        "[",
        "]",
        ", ",
        "[p, q]",
        "|",
        ">-",
        "|+",
        "#",
        " # c",
        ": ",
        "~",
        "null",
        "text of words",
        "http://h/p",
        "it''s",
        "\\n",
        "no",
        "1.10",
        "é",
        "{}",
        "{",
        "&",
        "*",
        "!t",
        "%",
        "@",
        "? ",
        "x:y",
    ]
)
line = st.builds(
    lambda indent, key, pieces: " " * indent + key + "".join(pieces),
    st.sampled_from([0, 0, 0, 2, 2, 4, 1]),
    st.sampled_from(["k1: ", "k2: ", "k3:", "k4:", "- ", "- k5: ", "- - ", "", "'k6': ", "k7 k8: "]),
    st.lists(piece, max_size=3),
)


@settings(deadline=None, max_examples=600)
@given(st.lists(line | st.just(""), max_size=9))
@example(["~"])
def test_what_we_read_is_what_pyyaml_reads(lines: list[str]) -> None:
    if any(text.rstrip() in {"---", "..."} for text in lines):
        return
    text = "\n".join(lines) + "\n"
    card, notes = front_matter(f"---\n{text}---\n")
    try:
        theirs = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        return
    if any(
        isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None)
        for event in yaml.parse(text)
    ):
        assert not card and notes
    elif isinstance(theirs, dict) and not notes:
        assert same(card, theirs)
    else:
        assert notes or not theirs or theirs in ("~", "null")  # BaseLoader leaves a null as it is spelled


scalar = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85"), max_size=20)
key = scalar.filter(bool)
some = st.lists(scalar, min_size=1, max_size=3)
data = st.dictionaries(
    key,
    scalar
    | some
    | st.dictionaries(key, scalar, min_size=1, max_size=3)
    | st.lists(st.dictionaries(key, scalar | some, min_size=1, max_size=3), min_size=1, max_size=2),
    max_size=4,
)


@settings(deadline=None)
@given(data, st.booleans())
def test_what_pyyaml_writes_we_read(card: dict[str, object], indented: bool) -> None:
    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, indentless and not indented)

    text = yaml.dump(card, Dumper=Dumper, allow_unicode=True, width=1 << 20, sort_keys=False)
    found, notes = front_matter(f"---\n{text}---\n" if card else "---\n---\n")
    assert notes == ()
    assert found == card


@settings(deadline=None)
@given(st.text(max_size=200) | st.text("a:- \n#'\"[]|>\t", max_size=200))
def test_any_text_gives_an_answer(text: str) -> None:
    card, notes = front_matter(f"---\n{text}\n---\n")
    assert isinstance(card, dict) and len(notes) <= 21


@pytest.mark.parametrize("unit", ["a: ", " ", "- ", "[", "[a,", "'", '"', '"\\', ":", "a:\n", "- - ", "\n\n", "a #"])
def test_hostile_cards_take_bounded_time(unit: str) -> None:
    text = unit * ((64 << 10) // len(unit))
    start = time.process_time()
    for hostile in (f"---\n{text}\n---\n", f"---\nk: {text}\n---\n", f"---\nk:\n  {text}\n---\n"):
        front_matter(hostile)
    assert time.process_time() - start < 4


def test_cards_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n" + b"\xff" * 100)
    assert read_card(str(path)) == ({"license": "mit"}, ())
    path.write_bytes(b"---\nlicense: \xff\n---\n")
    assert read_card(str(path)) == ({}, ("the front matter of README.md is not UTF-8; it was not read",))
    path.write_bytes(b"---\n" + b"#" * MAX_CARD + b"\n---\n")
    assert "does not close within" in read_card(str(path))[1][0]
    path.write_bytes(b"---\nlicense: mit\n")
    assert "does not close before the end" in read_card(str(path))[1][0]
    path.write_bytes(b"# no front matter\n---\n")
    assert read_card(str(path)) == ({}, ())
    with pytest.raises(NotFoundError):
        read_card(str(tmp_path / "none.md"))
