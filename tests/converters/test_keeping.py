"""Tokenizers that are kept while an archive is looked at are those that would be made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.tokenizers.building_blocks import sentencepiece_proto as spm_file
from ggferry.converters.tokenizers.files import derive_pre_tokenizer as derive
from ggferry.converters.tokenizers.files import tokenizer_json as hf_json
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.legacy import llama as legacy
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import GgferryError
from ggferry.formats.gguf import header_layout as gguf_layout
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import ValueType, array
from ggferry.formats.json_files import text as json_text
from ggferry.support.content_cache import Recent, keeping
from helpers.builders import Llama
from helpers.third_party_fixtures import cases, listed, witness

SCORES = (*[0.0] * 260, *(-float(i) for i in range(1, 41)))
RAW = RawVocab(tuple(Llama().vocabulary()), SCORES)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (legacy, hf_json, spm_file, json_text):
        monkeypatch.setattr(module, "_KNOWN", Recent(64 << 20))
    monkeypatch.setattr(gguf_layout, "_PACKED", Recent(64 << 20))


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The tokenizer.json files whose pre-tokenizer is proved."""
    found: list[str] = []
    ask = derive.ask

    def counted(*question: Any, path: str, **more: Any) -> object:
        found.append(path)
        return ask(*question, path=path, **more)

    monkeypatch.setattr(derive, "ask", counted)
    yield found


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", cases(listed("hf/ckpt/*")))
def test_what_is_found_is_what_is_made(name: str, tmp_path: Path) -> None:
    folder = witness(name)

    def told(path: Path) -> object:
        try:
            return load(str(path))
        except GgferryError as error:
            return error.message

    alone = told(folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copy(path, copy)
    with keeping():
        told(folder)
        again = told(copy)
    assert repr(again).replace(str(copy), str(folder)) == repr(alone)


def _bpe(folder: Path) -> Path:
    """A byte-level tokenizer.json without any merge."""
    from ggferry.converters.tokenizers.building_blocks.byte_level import letters

    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    model = {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters())}, "merges": []}
    folder.mkdir()
    document = {"model": model, "pre_tokenizer": spell, "decoder": spell}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_the_same_tokenizer_json_is_proved_once_and_only_while_keeping(tmp_path: Path, proofs: list[str]) -> None:
    folders = [_bpe(tmp_path / name) for name in "abc"]
    with keeping():
        made = [load(str(folder)) for folder in folders]
    assert len(proofs) == 1 and made[0] == made[1] == made[2]
    load(str(folders[0]))
    assert len(proofs) == 2  # a conversion proves it itself


def test_what_stands_beside_it_counts(tmp_path: Path, proofs: list[str]) -> None:
    plain, added = _bpe(tmp_path / "plain"), _bpe(tmp_path / "added")
    entry = {"256": {"content": "<|end|>", "special": True}}
    (added / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entry}))
    with keeping():
        assert len(load(str(plain)).tokens) == 256
        assert load(str(added)).tokens[256:] == ("<|end|>",)
        assert load(str(plain), pre="llama-bpe").pre == "llama-bpe"
        assert load(str(plain)).pre == "gpt-2"
    assert len(proofs) == 2


def test_errors_are_not_kept_and_name_their_own_file(tmp_path: Path) -> None:
    folders = [_bpe(tmp_path / name) for name in "ab"]
    for folder in folders:
        document = json.loads((folder / "tokenizer.json").read_text())
        document["model"]["merges"] = ["a zz"]
        (folder / "tokenizer.json").write_text(json.dumps(document))
    with keeping():
        for folder in folders:
            with pytest.raises(GgferryError, match="merge 0") as raised:
                load(str(folder))
            assert raised.value.path == str(folder / "tokenizer.json")


def test_legacy_vocabularies_differ_by_the_bits_of_their_scores_and_by_rows() -> None:
    other = replace(RAW, scores=(*SCORES[:259], -0.0, *SCORES[260:]))
    with keeping():
        plain = legacy.from_raw_vocab(RAW, model_rows=300)
        assert legacy.from_raw_vocab(replace(RAW), model_rows=300) is plain
        assert str((legacy.from_raw_vocab(other, model_rows=300).scores or ())[259]) == "-0.0"
        assert str((plain.scores or ())[259]) != "-0.0"
        assert len(legacy.from_raw_vocab(RAW, model_rows=304).tokens) == 304
    assert legacy.from_raw_vocab(RAW, model_rows=300) is not plain
    assert legacy.from_raw_vocab(RAW, model_rows=300) == plain


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("version", [1, 3])
def test_packed_strings_are_kept_by_order_and_width(big: bool, version: int) -> None:
    def header(texts: list[str], big: bool, version: int) -> bytes:
        return lay_out({"a": array(ValueType.STRING, texts)}, [], big_endian=big, version=version).header

    texts = [f"é{i % 7}\udcff" for i in range(gguf_layout.VOCABULARY)]
    alone = header(texts, big, version)
    with keeping():
        for order in (False, True):
            for width in (1, 3):
                header(texts, order, width)
                header([*texts[:-1], "x"], order, width)
        assert header(texts, big, version) == alone
