"""Files of tokens by rank, of LLaMA 3 and the first QWen: what GGUF holds gives the ids of tiktoken itself."""

from __future__ import annotations

import base64
import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import tiktoken
import torch
from safetensors.torch import load_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.raw_vocabulary import check_raw
from ggferry.converters.tokenizers.building_blocks import byte_level
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.libraries.child import LLAMA_3
from ggferry.converters.tokenizers.libraries.cross_check import cross_check, texts_of
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.errors import InconsistentError, VerificationError
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import FIXTURES

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
"""PAT_STR of Qwen/Qwen-7B, tokenization_qwen.py."""
WHOLE = (b" quick", b"zyx", b" fox jumps", b" over", b"unreachable", b"qu", b"ick")
"""Tokens as LLaMA 3 has 695: no merge of two earlier ones makes some of them, or several do."""


@cache
def ranks(name: str, *more: bytes) -> dict[bytes, int]:
    """The vocabulary of a fixture by rank, with further tokens behind."""
    vocabulary = json.loads((FIXTURES / "tokenizers" / name / "tokenizer.json").read_text())["model"]["vocab"]
    known = [byte_level.unspell(text) or b"" for text in sorted(vocabulary, key=vocabulary.__getitem__)]
    letters = [bytes([byte]) for byte in range(256) if bytes([byte]) not in known]
    return {token: rank for rank, token in enumerate(dict.fromkeys([*known, *letters, *more]))}


def lines(ranked: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranked.items())


def library(ranked: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranked, special_tokens={})


CORPUS = (FIXTURES / "tokenizers" / "corpus.txt").read_text(encoding="utf-8", errors="replace").splitlines()
WORDS = ["the quick fox jumps over", "zyx zyxzyx", "unreachable", "quick", " quickest fox jumps", "q u ick qui quick"]


def test_words_that_no_merge_makes_are_llama_3s_tokens(tmp_path: Path) -> None:
    ranked = ranks("bpe_llama3", *WHOLE)
    assert byte_level.rebuild_merges(ranked.items())[1], "every token has a merge"
    (tmp_path / "tokenizer.model").write_bytes(lines(ranked))
    made, theirs = find.load(str(tmp_path)), library(ranked, LLAMA_3)
    own = encoder(Tokenizer.from_kv(made.to_kv()))
    for text in (*TEXTS, *CORPUS[:300], *WORDS):
        if "<|" not in text:
            assert own.encode(text, bos=False) == theirs.encode_ordinary(text), text
    assert own.encode("unreachable", bos=False) == [ranked[b"unreachable"]]
    witness, files = find.reference(str(tmp_path))
    assert witness is not None
    found = cross_check(witness, made, own, texts_of(made, witness.added, pieces=True), vocabulary=True)
    assert found.check.first is None and not found.excused and found.reached > len(ranked) - 60
    check_raw(made, witness, found.facts, files, "x")


@pytest.mark.parametrize("layout", ["transformers", "Meta's"])
def test_a_folder_with_such_a_file_converts(layout: str, tmp_path: Path) -> None:
    ranked, folder = ranks("bpe_llama3", *WHOLE), tmp_path / "model"
    source = hf_llama(folder, vocab_size=len(ranked) + 256)
    if layout != "transformers":
        tensors = load_file(source / "model.safetensors")
        names = {
            "model.embed_tokens": "tok_embeddings",
            "model.norm": "norm",
            "self_attn.q_proj": "attention.wq",
            "self_attn.k_proj": "attention.wk",
            "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.down_proj": "feed_forward.w2",
            "mlp.up_proj": "feed_forward.w3",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "model.layers": "layers",
        }
        renamed = {}
        for name, tensor in tensors.items():
            for theirs, own in names.items():
                name = name.replace(theirs, own)
            renamed[name] = tensor
        renamed["output.weight"] = renamed["tok_embeddings.weight"].clone()
        folder = tmp_path / "Meta"
        folder.mkdir()
        torch.save(renamed, folder / "consolidated.00.pth")
        params = {
            "dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "vocab_size": len(ranked) + 256,
            "multiple_of": 32,
            "norm_eps": 1e-5,
            "rope_theta": 500000.0,
        }
        (folder / "params.json").write_text(json.dumps(params))
    (folder / "tokenizer.model").write_bytes(lines(ranked))
    said = convert(Request(str(folder), out=str(tmp_path / "x.gguf")))[0].receipt["tokenizer"]
    assert said["by"].startswith("tiktoken") and said["equal"] == said["texts"] > 400


def test_the_first_qwens_file_is_read(tmp_path: Path) -> None:
    """tiktoken with QWen's own pattern, after NFC; special tokens behind the ranks."""
    ranked, folder = ranks("bpe_qwen2"), tmp_path / "model"
    theirs = library(ranked, QWEN)
    hf_llama(folder, vocab_size=len(ranked) + 208 + 5)
    (folder / "tokenizer.model").unlink()
    (folder / "qwen.tiktoken").write_bytes(lines(ranked))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "QWenTokenizer", "model_max_length": 64})
    )
    result = convert(Request(str(folder), out=str(tmp_path / "x.gguf")))[0]
    said = result.receipt["tokenizer"]
    assert said["by"].startswith("tiktoken") and said["equal"] == said["texts"] > 400
    assert any("NFC" in note for note in result.receipt["notes"])
    again = open_checkpoint(result.path)
    made = Tokenizer.from_kv(again.metadata)
    again.close()
    assert made.pre == "qwen2" and made.tokens[len(ranked) :][:4] == (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|extra_0|>",
    )
    assert made.tokens[len(ranked) + 207] == "<|extra_204|>"
    assert (made.ids["eos"], made.ids["eot"]) == (len(ranked), len(ranked) + 2)
    own = encoder(made)
    for text in (*TEXTS, *CORPUS[:300]):
        composed = unicodedata.normalize("NFC", text)
        assert own.encode(composed, bos=False) == theirs.encode_ordinary(composed), text


def test_a_special_token_of_the_first_qwens_that_moved_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(lines(ranks("bpe_qwen2")))
    made, (witness, files) = find.load(str(tmp_path)), find.reference(str(tmp_path))
    assert witness is not None
    found = cross_check(witness, made, encoder(made), vocabulary=True)
    check_raw(made, witness, found.facts, files, "x")
    tokens = list(made.tokens)
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    moved = Tokenizer(**{**{name: getattr(made, name) for name in made.__slots__}, "tokens": tuple(tokens)})
    with pytest.raises(VerificationError, match="extra"):
        check_raw(moved, witness, found.facts, files, "x")


def test_words_without_merges_are_refused_where_no_runtime_looks_words_up(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(lines(ranks("bpe_qwen2", *WHOLE)))
    with pytest.raises(InconsistentError, match="follow from no merge"):
        find.load(str(tmp_path))
