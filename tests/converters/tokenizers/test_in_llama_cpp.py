"""Today's llama.cpp on the vocabularies we write: it loads them, and its ids are our reference encoder's."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers import tokenizer as base
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.legacy import llama as legacy
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.formats.gguf.values import ValueType
from helpers.llama_cpp_tokens import ids_of, serving
from helpers.peers import Peers

pytestmark = pytest.mark.slow

# bert: llama.cpp does not take Hangul apart as BERT's normalizer does, and takes U+0085 for a blank.
# rwkv: its trie holds the name of the control token too, and finds <s> in plain text; RWKV's own does not.
ALLOWED = {
    "bert": {text for text in TEXTS if "한국어" in text or "\u0085" in text},
    "rwkv6": {text for text in TEXTS if "<s>" in text},
}


def rewritten(source: Path, tokenizer: base.Tokenizer, target: Path) -> None:
    """`source` with the tokenizer's keys replaced by ours; written by the gguf package."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            kind = field.types[0]
            items = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, items)
    for key, value in tokenizer.to_kv().items():
        kind = gguf.GGUFValueType(int(value.type))
        if value.type == ValueType.ARRAY and value.items is not None:
            writer.add_key_value(key, list(value.data), kind, gguf.GGUFValueType(int(value.items)))
        else:
            writer.add_key_value(key, value.data, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_equal_ids(source: Path, tokenizer: base.Tokenizer, target: Path, allowed: set[str]) -> None:
    rewritten(source, tokenizer, target)
    encoder = base.encoder(tokenizer)
    with serving(target) as address:
        for special in (True, False):
            different = {
                text for text in TEXTS if encoder.encode(text, False, special) != ids_of(address, text, special)
            }
            assert different <= allowed


@pytest.mark.parametrize(
    "name", ["gpt2_nctx", "llama_k256", "qwen2", "starcoder", "bloom", "falcon40b", "llama", "bert", "rwkv6"]
)
def test_llama_cpp_gives_the_ids_of_our_encoder(fixtures: Path, peer: Peers, tmp_path: Path, name: str) -> None:
    tokenizer = load(str(fixtures / "hf" / "ckpt" / name), rows=300 if name == "rwkv6" else None)
    assert_equal_ids(peer(f"hf/out/{name}/{name}.f32.gguf"), tokenizer, tmp_path / "x.gguf", ALLOWED.get(name, set()))


@pytest.mark.parametrize("name", ["ggml-20230310-planar/q4_0.bin", "ggml-20230320/q4_0.bin", "ggjt3-20230821/q8_0.bin"])
def test_llama_cpp_gives_the_ids_of_legacy_vocabularies(fixtures: Path, peer: Peers, tmp_path: Path, name: str) -> None:
    raw = open_checkpoint(str(fixtures / "legacy-llama" / name)).vocab
    assert raw is not None
    tokenizer = legacy.from_raw_vocab(raw, model_rows=512)
    source = peer("hf/out/llama/llama.f32.gguf")  # 512 rows as well
    assert_equal_ids(source, tokenizer, tmp_path / "x.gguf", set())
