"""Tokenizer files that are made to hang, to grow or to end the process of the library that reads them: each ends in an
error of ours, soon, because no library runs in our process.

Once their patterns were ours to run: two cost 20 s each; `(?:(?:a{300}){300}){300}` took 7 GB while it was compiled.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.tokenizers.building_blocks import charsmap
from ggferry.converters.tokenizers.building_blocks import pre_tokenizers as pres
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.libraries import ask as asking
from ggferry.converters.tokenizers.libraries.ask import ask
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.formats.errors import GgferryError, OutOfRangeError, UnsupportedError
from helpers.third_party_fixtures import FIXTURES

pytestmark = pytest.mark.attack

SOURCE = FIXTURES / "tokenizers" / "bpe_llama3"
DOCUMENT = json.loads((SOURCE / "tokenizer.json").read_text())


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any], key: str = "pretokenizers") -> dict[str, Any]:
    return {"type": "Sequence", key: list(steps)}


def tokenizer(folder: Path, **change: Any) -> str:
    """A tokenizer.json with other steps."""
    shutil.copytree(SOURCE, folder)
    path = folder / "tokenizer.json"
    path.unlink()
    path.write_text(json.dumps({**DOCUMENT, **change}))
    return str(folder)


PATTERNS = {
    "ranges within ranges": "(?:(?:(?:a{1,1000}){1,1000}){1,1000}){1,1000}b",
    "repetitions that are written out": "(?:(?:a{300}){300}){300}b",
    "a lookahead a billion times": "(?:(?=a){1000000000}a)*b",
    "nothing a billion times": "(?:(?:(?:x?){100000}){100000}){100000}b",
    "alternatives": "|".join(f"a{i}" for i in range(50_000)),
    "groups": "(?:" * 300 + "a" + ")" * 300,
    "recursion": r"(?<x>a\g<x>?b\g<x>)*",
    "every way of cutting": r"(?:(?:a|a)(?:a|a))*b|(?:a|aa)+$c",
    "no pattern": "(((",
}


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_pattern_that_no_runtime_has_is_refused_soon(kind: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UnsupportedError) as caught:
        load(tokenizer(tmp_path / "model", pre_tokenizer=sequence(split(PATTERNS[kind]))))
    assert caught.value.path == str(tmp_path / "model" / "tokenizer.json")
    assert time.monotonic() - began < 20


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


GROWING: dict[str, Any] = {
    "Replace": sequence(*[replacing({"String": "a"}, "a" * 16)] * 20, key="normalizers"),
    "Replace of nothing": replacing({"Regex": ""}, "x" * 100_000),
    "Prepend": sequence(*[{"type": "Prepend", "prepend": "x" * 5000}] * 60, key="normalizers"),
    "NFKD of one that grows": sequence(
        *[replacing({"Regex": "."}, "\ufdfa"), {"type": "NFKD"}] * 30, key="normalizers"
    ),
}


@pytest.mark.unix("limits of memory and processor time")
@pytest.mark.parametrize("kind", GROWING)
def test_text_that_grows_without_end_costs_us_no_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MEMORY", 256 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsupportedError, match=r"(ran out of memory|did not finish in time)") as caught:
        ask(
            "tokenizers",
            json.dumps({**DOCUMENT, "normalizer": GROWING[kind]}).encode(),
            TEXTS,
            path="x",
            normalize=True,
        )
    assert caught.value.path == "x"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.unix("limits of processor time")
def test_the_process_has_so_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SECONDS", 1)
    slow = {**DOCUMENT, "pre_tokenizer": sequence(*[split(rf"(?:.?){{13}}.{{13}}$|{i}q") for i in range(1, 60)])}
    began = time.monotonic()
    with pytest.raises(UnsupportedError, match="did not finish"):
        ask("tokenizers", json.dumps(slow).encode(), ["ab " * 200] * 200, path="x")
    assert time.monotonic() - began < 10


BROKEN = {
    "nested": ("tokenizers", b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "another model": ("tokenizers", json.dumps({**DOCUMENT, "model": {"type": "Surprise"}}).encode()),
    "a charsmap that is none": (
        "tokenizers",
        json.dumps({**DOCUMENT, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}).encode(),
    ),
    "nothing": ("tokenizers", b""),
    "no protobuf": ("sentencepiece", b"\x0a\xff\xff\xff\xff\xff\xff"),
    "one piece": ("sentencepiece", b"\x0a\x05\x0a\x03abc"),
    "no bytes": ("sentencepiece", b""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_a_library_does_not_read_is_an_error_of_ours(kind: str) -> None:
    library, data = BROKEN[kind]
    with pytest.raises(UnsupportedError, match=f"{library} does not read this tokenizer") as caught:
        ask(library, data, TEXTS, path="x", normalize=True)
    assert caught.value.path == "x" and issubclass(UnsupportedError, GgferryError)


def test_the_process_sees_no_secret_and_no_module_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment stays with us; a module planted where the program runs is not imported."""
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "not a truth")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = ask("tokenizers", (SOURCE / "tokenizer.json").read_bytes(), ["a b"], path="x")
    assert answer.library.startswith("tokenizers 0.") and len(answer) == 1 and answer.ids(0)


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


def test_every_known_pattern_is_quick() -> None:
    for pre in pres.PRES:
        began = time.thread_time()
        splitter = pres.Splitter(pre.chain)
        for text in TEXTS:
            splitter.split(text)
        assert time.thread_time() - began < 5
