"""Regular expressions of tokenizer.json: two patterns cost 20 s each, 64 steps on 40 texts would have been hours, and
`(?:(?:a{300}){300}){300}` took 7 GB while it was compiled."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.tokenizers.building_blocks import charsmap
from ggferry.converters.tokenizers.building_blocks import pattern_budget as budget
from ggferry.converters.tokenizers.building_blocks.pattern_budget import Budget, written_out
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import PRES
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.hugging_face.pipeline import normalizer, pre_tokenizer, run
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.formats.errors import CorruptError, GgferryError, OutOfRangeError, UnsupportedError
from helpers.witnesses import FIXTURES

SOURCE = FIXTURES / "tokenizers" / "bpe_llama3"


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any], key: str = "pretokenizers") -> dict[str, Any]:
    return {"type": "Sequence", key: list(steps)}


def tokenizer(folder: Path, **change: Any) -> str:
    """A tokenizer.json with other steps."""
    shutil.copytree(SOURCE, folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({**document, **change}))
    return str(folder)


FOR_EVER = r"(?:(?:a|a)(?:a|a))*b|(?:a|aa)+$c"
REFUSED = {
    "ranges within ranges": ("(?:(?:(?:a{1,1000}){1,1000}){1,1000}){1,1000}b", "the patterns of a tokenizer"),
    "repetitions that are written out": ("(?:(?:a{300}){300}){300}b", "the patterns of a tokenizer"),
    "a lookahead a billion times": ("(?:(?=a){1000000000}a)*b", "the patterns of a tokenizer"),
    "nothing a billion times": ("(?:(?:(?:x?){100000}){100000}){100000}b", "the patterns of a tokenizer"),
    "alternatives": ("|".join(f"a{i}" for i in range(200_000)), "the patterns of a tokenizer"),
    "groups": ("(?:" * 300 + "a" + ")" * 300, "groups within another"),
    "recursion": ("(?R)?a", "is no part of such patterns"),
    "approximate matches": ("(?:aaaaaaaaaaaaaaaaaa){e<=9}", "is no part of such patterns"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_pattern_that_costs_too_much_is_refused_before_it_is_compiled(kind: str, tmp_path: Path) -> None:
    pattern, words = REFUSED[kind]
    began = time.process_time()
    with pytest.raises(UnsupportedError, match=words) as caught:
        load(tokenizer(tmp_path / "model", pre_tokenizer=sequence(split(pattern))))
    assert caught.value.path == str(tmp_path / "model" / "tokenizer.json")
    assert time.process_time() - began < 10


def test_all_steps_and_texts_have_one_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each match of these takes less than the limit."""
    monkeypatch.setattr(Budget.__init__, "__defaults__", (None, 0.5))
    steps = [split(rf"(?:.?){{14}}.{{14}}$|\p{{L}}{{{i}}}q") for i in range(1, 60)]
    began = time.process_time()
    with pytest.raises(UnsupportedError, match="take for ever"):
        load(tokenizer(tmp_path / "model", pre_tokenizer=sequence(*steps)))
    assert time.process_time() - began < 20


def test_a_match_ends_with_what_is_left() -> None:
    spent = Budget("x", 0.3)
    matcher = spent.compile(FOR_EVER)
    for call in (lambda: spent.cut(matcher, "a" * 60), lambda: spent.replace(matcher, "b", "a" * 60)):
        spent.left = 0.3
        with pytest.raises(UnsupportedError, match="take for ever"):
            call()


def test_time_to_compile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(budget.time, "thread_time", lambda: next(clock))
    spent = Budget("x")
    spent.compile("a")
    with pytest.raises(UnsupportedError, match="take for ever"):
        spent.compile("b")


def test_lengths_are_counted_together() -> None:
    spent = Budget("x")
    for i in range(2):
        spent.compile("a" * (budget.MAX_PATTERN - 1) + str(i))
    with pytest.raises(UnsupportedError, match="the patterns of a tokenizer"):
        spent.compile("b")


BLANK = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
GROWING: dict[str, tuple[Any, Any]] = {
    "Replace": (sequence(*[BLANK] * 20, key="normalizers"), None),
    "Replace of nothing": ({"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 100_000}, None),
    "Prepend": (sequence(*[{"type": "Prepend", "prepend": "x" * 5000}] * 60, key="normalizers"), None),
    "NFKD of one that grows": (
        sequence(*[{"type": "Replace", "pattern": {"Regex": "."}, "content": "\ufdfa"}, {"type": "NFKD"}] * 30,
                 key="normalizers"), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GROWING)
def test_text_is_not_made_longer_without_end(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="longer without end") as caught:
        normalizer(GROWING[kind][0], Budget("x")).apply("banana " * 9)
    assert caught.value.path == "x"


def test_words_are_not_made_longer_without_end() -> None:
    metaspace = {"type": "Metaspace", "prepend_scheme": "always", "split": False}
    signs = [{**metaspace, "replacement": sign} for sign in "abcdefghijkl"]
    steps = pre_tokenizer(sequence(*[step for sign in signs for step in (sign, split("."))]), one := Budget("x"))
    with pytest.raises(UnsupportedError, match="longer without end"):
        run(steps, "xyz", one)
    with pytest.raises(CorruptError, match="one character"):
        pre_tokenizer({**metaspace, "replacement": "ab"}, Budget("x"))


def test_a_charsmap_replaces_by_short_texts_only() -> None:
    # a trie whose only prefix is 'a', with the value 0: the first of the texts
    units = [0] * 512
    label, leaf = ord("a"), 256
    units[label] = (leaf ^ label) << 10 | 1 << 8 | label
    units[leaf] = 1 << 31
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    for text, works in ((b"x" * charsmap.LONGEST, True), (b"x" * 5000, False)):
        made = charsmap.Charsmap(len(trie).to_bytes(4, "little") + trie + text + b"\0")
        if works:
            assert made.normalize("ba") == "b" + text.decode()
        else:
            with pytest.raises(OutOfRangeError):
                made.normalize("ba")


@pytest.mark.parametrize(("pattern", "size"), [
    ("abc", 3), ("a*b+c?", 3), (r"\p{L}\x{41}", 2), ("[a-z[0-9]&&[^5]]+", 1), ("a{3}", 3), ("a{2,5}", 5), ("a{4,}", 4),
    ("(?:ab){3}", 6), ("(?:a{3}b){10}", 40), ("a{3}{4}", 12), (r"\{e<=1\}", 6), ("[{e<=1}]", 1), ("(a|b){2}(?=c)", 7),
    ("a{,7}", 7), ("a{b}", 4), (r"[\]a]{9}", 9), ("(?i)a", 1), ("(?<x>a){2}(?s-i:b){3}", 5), ("", 0),
])  # fmt: skip
def test_how_long_a_pattern_is_written_out(pattern: str, size: int) -> None:
    assert written_out(pattern) == size


def test_every_known_pattern_is_within_the_budget() -> None:
    for pre in PRES:
        spent = Budget("x")
        for pattern in pre.chain:
            matcher = spent.compile(pattern)
            for text in TEXTS:
                spent.cut(matcher, text)
        assert spent.left > budget.SECONDS / 2
        assert spent.characters > budget.MAX_PATTERNS / 2


def test_patterns_of_our_own_have_no_budget() -> None:
    free = Budget(seconds=math.inf)
    assert run(pre_tokenizer({"type": "BertPreTokenizer"}, free), "a b" * 50_000, free)
    assert free.left == math.inf
    assert issubclass(UnsupportedError, GgferryError)
