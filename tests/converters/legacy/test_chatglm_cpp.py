"""Files by chatglm.cpp's own convert.py become the GGUF that the publisher's checkpoint of the same weights becomes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
import tiktoken
from safetensors.numpy import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import CorruptError, GgferryError, UnsupportedError
from ggferry.quant.codec import codec
from helpers.llama_api import encoded_and_decoded
from helpers.make_chatglm_fixtures import FILES, FIXTURES, OUT, ROWS, SPM, config, ranks, weights
from helpers.third_party_fixtures import FIXTURES as SAME

TEXTS = ("Hello world", "the king and the 12345 things\n\n  in it", "naïve café", "def f(x):\n    return x**2")


def _publishers(folder: Path, version: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(version)))
    save_file(weights(), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_tensors_are_those_that_convert_py_was_given(name: str) -> None:
    version, _, kind = FILES[name]
    checkpoint, given = open_checkpoint(str(OUT / name)), weights()
    assert SAME == FIXTURES and checkpoint.tensors.keys() == given.keys() and checkpoint.version == version
    for tensor, values in given.items():
        ref = checkpoint.tensors[tensor]
        found = values_of(checkpoint, ref, 0, ref.rows).reshape(values.shape)
        assert ref.shape == values.shape and ref.type.name == (kind if values.ndim == 2 else "F32")
        if ref.type.name == "F32":
            assert np.array_equal(found, values)
        elif kind == "F16":
            assert np.array_equal(found, values.astype(np.float16).astype(np.float32))
        else:
            error = np.sqrt(np.square(found - values).sum() / np.square(values).sum())
            low, high = codec(kind).accuracy.band or (0.0, 0.0)
            assert low * 0.8 < error < high * 1.1, tensor


@pytest.mark.parametrize("name", FILES)
def test_blocks_arrive_unchanged(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert(Request(str(OUT / name), str(out), level="fast"))
    checkpoint = open_checkpoint(str(OUT / name))
    tensors = {each.name: each for each in gguf.GGUFReader(out).tensors}
    for ours, theirs in {"ffn_up": "mlp.dense_h_to_4h", "attn_qkv": "self_attention.query_key_value"}.items():
        ref = checkpoint.tensors[f"transformer.encoder.layers.1.{theirs}.weight"]
        found = tensors[f"blk.1.{ours}.weight"]
        assert found.tensor_type.name == FILES[name][2]
        assert found.data.tobytes() == raw_rows(checkpoint, ref, 0, ref.rows).tobytes()


@pytest.mark.parametrize("name", ["glm3-v2-f32.bin", "glm2-v1-q4_0.bin"])
def test_keys_and_logits_are_those_of_the_publishers_checkpoint(name: str, tmp_path: Path) -> None:
    version, _, kind = FILES[name]
    folder = _publishers(tmp_path / "hf", version)
    for source, out in ((OUT / name, "a.gguf"), (folder, "b.gguf")):
        convert(Request(str(source), str(tmp_path / out), vocab=VocabOptions(none=True)))
    a, b = (gguf.GGUFReader(tmp_path / out) for out in ("a.gguf", "b.gguf"))
    keys = {key for each in (a, b) for key in each.fields if key.startswith("chatglm.")}
    assert len(keys) > 9 and all(a.fields[key].contents() == b.fields[key].contents() for key in keys)
    if kind == "F32":
        same = {each.name: each.data for each in b.tensors}
        assert all(np.array_equal(each.data, same[each.name]) for each in a.tensors) and len(a.tensors) == len(same)


def test_llama_cpp_computes_what_we_do(tmp_path: Path) -> None:
    tokens, out = [1, 17, 4, 90, 33, 2, 61, 5, 44, 100, 12], tmp_path / "out.gguf"
    convert(Request(str(OUT / "glm3-v2-f32.bin"), str(out), level="fast"))
    theirs = encoded_and_decoded(str(out), [], tokens, tmp_path)
    ours = np.asarray(forward(graph_of(str(OUT / "glm3-v2-f32.bin")), tokens))
    assert np.sqrt(np.square(ours - theirs).mean() / np.square(ours).mean()) < 2e-3  # float16 keys and values


@pytest.mark.parametrize("name", ["glm2-v1-q4_0.bin", "glm3-v2-f16.bin"])
def test_sentencepiece_within_the_file_encodes_as_the_library(name: str) -> None:
    tokenizer = load_tokenizer(open_checkpoint(str(OUT / name)), ROWS)
    library = sentencepiece.SentencePieceProcessor(model_proto=SPM.read_bytes())
    assert tokenizer is not None and tokenizer.ids["eos"] == library.eos_id() and len(tokenizer.tokens) == ROWS
    for text in TEXTS:
        assert list(encoder(tokenizer).encode(text)) == library.encode(text)
    first = library.get_piece_size()
    assert tokenizer.tokens[first : first + 5] == ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
    assert (tokenizer.tokens[first + 6] == "<|user|>") == name.startswith("glm3")


def test_ranks_within_the_file_encode_as_tiktoken() -> None:
    import base64

    tokenizer = load_tokenizer(open_checkpoint(str(OUT / "glm4-v2-q4_1.bin")), ROWS)
    assert tokenizer is not None and tokenizer.pre == "chatglm-bpe"
    lines = [line.split() for line in ranks().splitlines()]
    pattern = (  # of chatglm.cpp's ChatGLM4Tokenizer, whose (\s+)(?:\s) stands for \s+(?!\S)
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    known = {base64.b64decode(token): int(rank) for token, rank in lines}
    library = tiktoken.Encoding("glm4", pat_str=pattern, mergeable_ranks=known, special_tokens={})
    for text in TEXTS:
        assert list(encoder(tokenizer).encode(text)) == library.encode(text)
    end = len(known)
    assert tokenizer.tokens[end] == "<|endoftext|>" and tokenizer.ids["eos"] == end
    assert tokenizer.tokens[tokenizer.ids["eot"]] == "<|user|>"


@pytest.mark.parametrize("number", [1, 1024, 1025, 1280])
def test_other_models_are_refused_by_name(tmp_path: Path, number: int) -> None:
    path = tmp_path / "other.bin"
    path.write_bytes(b"ggml" + struct.pack("<2i", number, 1) + bytes(200))
    with pytest.raises(UnsupportedError, match=r"ChatGLM-6B|Baichuan|InternLM"):
        open_checkpoint(str(path))


@pytest.mark.slow
def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = (OUT / "glm2-v1-q4_0.bin").read_bytes()
    path = tmp_path / "cut.bin"
    for size in (*range(4, 70), *range(80, len(data), 4999), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(GgferryError):
            convert(Request(str(path), str(tmp_path / "x.gguf"), level="none"))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(4, 7), (8, 3), (12, 9), (16, 0), (20, 1 << 30), (24, 5), (24, -1), (32, 0), (56, 3), (60, 0), (60, 1 << 30)],
)
def test_wrong_fields_are_errors_of_ours(tmp_path: Path, offset: int, value: int) -> None:
    data = bytearray((OUT / "glm2-v1-q4_0.bin").read_bytes())
    struct.pack_into("<i", data, offset, value)
    path = tmp_path / "wrong.bin"
    path.write_bytes(data)
    with pytest.raises((CorruptError, UnsupportedError)):
        open_checkpoint(str(path))


def test_flipped_bytes_end_in_errors_of_ours_or_another_model(tmp_path: Path) -> None:
    data = (OUT / "glm2-v1-q4_0.bin").read_bytes()
    rng, path = np.random.default_rng(4), tmp_path / "flipped.bin"
    refused = 0
    for _ in range(150):
        wrong = bytearray(data)
        at = int(rng.integers(4, 62)) if rng.random() < 0.5 else 62 + 7450 + int(rng.integers(0, 80))
        wrong[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(wrong)
        try:
            open_checkpoint(str(path))
        except GgferryError:
            refused += 1
    assert refused > 50
