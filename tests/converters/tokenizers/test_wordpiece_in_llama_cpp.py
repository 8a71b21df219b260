"""llama.cpp's WordPiece as we foretell it, held against llama.cpp; the scripts that it cuts otherwise are said."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.in_llama_cpp import SCRIPTS, WordPiece, split_differently
from ggferry.converters.tokenizers.llama_cpp_limits import differences
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from helpers.llama_cpp_tokens import ids_of, serving


def every_sign(folder: Path, *, lower: bool = True) -> Tokenizer:
    """A vocabulary with each sign of the samples, whole and taken apart, at the beginning of words and within."""
    signs = {sign for text in (*SCRIPTS.values(), *TEXTS) for sign in unicodedata.normalize("NFD", text) + text}
    signs |= {sign.lower()[:1] for sign in signs}
    plain = sorted(sign for sign in signs if sign.isprintable() and not sign.isspace() and sign != "▁")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *plain, *(f"##{sign}" for sign in plain), "##ing", "the"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(
        f'{{"do_lower_case": {str(lower).lower()}, "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]",'
        ' "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}'
    )
    return load(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
def test_it_is_llama_cpps(lower: bool, tmp_path: Path) -> None:
    tokenizer = every_sign(tmp_path / "hf", lower=lower)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(tokenizer.tokens), **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "hf")
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf")))[0].path
    foretold = WordPiece(tokenizer)
    with serving(Path(path)) as address:
        for text in (*SCRIPTS.values(), *TEXTS):
            assert foretold.encode(text) == ids_of(address, text, False), text


def test_scripts_that_are_cut_otherwise_are_named(tmp_path: Path) -> None:
    tokenizer = every_sign(tmp_path)
    assert {"Hangul", "Devanagari", "Tamil"} <= set(split_differently(tokenizer))
    assert not {"Latin", "Latin with accents", "Cyrillic", "Han", "Kana", "Arabic"} & set(split_differently(tokenizer))
    assert "in these scripts and constructs: Hangul, " in differences(tokenizer)[0]
    assert differences(replace(tokenizer, model="gpt2")) == ()


def test_what_neither_has_pieces_of_is_no_difference(fixtures: Path) -> None:
    """Signs that the vocabulary lacks are unknown on both sides."""
    tokenizer = load(str(fixtures / "hf" / "ckpt" / "bert"))
    assert "Latin" not in split_differently(tokenizer)
