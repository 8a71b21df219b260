"""The parts of `inspect`, against gguf-py's reader and the bytes of the files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.third_party_fixtures import ROOT

MODEL = ROOT / "fixtures/hf/out/llama/llama.q8_0.gguf"
HEX = re.compile(r"(?P<at>0x[0-9a-f]{8})  (?P<bytes>(?:[0-9a-f]{2} ?)+)(?P<more>…)?  ")


def asked(*arguments: str | Path) -> dict[str, object]:
    return json.loads(command("inspect", *arguments, "--json").stdout)


@pytest.mark.parametrize(("span", "ids"), [("3:6", range(3, 6)), ("510:", range(510, 512)), ("7", [7]), (":2", [0, 1])])
def test_tokens_are_those_of_the_file(span: str, ids: list[int]) -> None:
    fields = gguf.GGUFReader(MODEL).fields
    texts, scores, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type"))
    found = asked(MODEL, "--tokens", span)["tokens"]
    assert [each["id"] for each in found] == list(ids)
    for each in found:
        n = each["id"]
        assert each["text"] == texts[n] and each["score"] == scores[n]
        assert each["type"].replace("-", "_") == gguf.TokenType(kinds[n]).name.lower()


def test_all_tokens_and_no_such_ones() -> None:
    assert len(asked(MODEL, "--tokens")["tokens"]) == 512
    assert len(command("inspect", MODEL, "--tokens").stdout.splitlines()) == 512
    assert asked(MODEL, "--tokens", "900:")["tokens"] == []
    command("inspect", MODEL, "--tokens", "a:b", code=2)


def test_tokens_of_other_files(tmp_path: Path) -> None:
    legacy = Llama().write(tmp_path / "old.bin")
    assert asked(legacy, "--tokens", "0:3")["tokens"][0]["id"] == 0
    folder = asked(ROOT / "fixtures/hf/ckpt/llama", "--tokens")["tokens"]
    assert [each["text"] for each in folder] == [each["text"] for each in asked(MODEL, "--tokens")["tokens"]]


def with_template(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_chat_template(
        [{"name": "tool_use", "template": "t\n\x1b[31m"}, {"name": "default", "template": "a\n b"}]
    )
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quants.quantize(np.ones((4, 32), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_templates_as_they_are(tmp_path: Path) -> None:
    path = with_template(tmp_path / "m.gguf")
    assert asked(path, "--template")["templates"] == {"": "a\n b", "tool_use": "t\n\x1b[31m"}
    shown = command("inspect", path, "--template").stdout
    assert "a\n b\n" in shown and "\x1b" not in shown
    assert command("inspect", MODEL, "--template").stdout == "no chat template\n"


def test_sizes_add_up(tmp_path: Path) -> None:
    found = asked(with_template(tmp_path / "m.gguf"), "--sizes")["sizes"]
    assert found["parameters"] == 256 and found["bits_per_weight"] == round(8 * (512 + 136) / 256, 3)
    assert {each["name"]: each["nbytes"] for each in found["by_type"]} == {"F32": 512, "Q8_0": 136}
    assert {each["name"]: each["nbytes"] for each in found["by_use"]} == {"embedding": 512, "feed-forward": 136}


def test_memory_by_length_and_type() -> None:
    found = asked(MODEL, "--sizes", "--context", "1000", "--cache-type", "f16", "--cache-type", "q8_0")["memory"]
    # 1024 cells × 2 blocks × (K and V) of 2 heads of 16
    assert [each["attention"] for each in found["caches"]] == [1024 * 2 * 2 * 32 * 2, 1024 * 2 * 2 * 34]
    command("inspect", MODEL, "--cache-type", "q3_k", code=2)


@pytest.mark.parametrize("name", ["llama.q8_0.gguf", "llama.f32.gguf"])
def test_every_byte_of_the_header_is_where_the_dump_says(name: str) -> None:
    path = MODEL.parent / name
    data, lines = path.read_bytes(), command("inspect", path, "--hex").stdout.splitlines()
    reader = gguf.GGUFReader(path)
    for line in lines:
        if match := HEX.match(line):
            raw = bytes.fromhex(match["bytes"])
            at = int(match["at"], 16)
            assert data[at : at + len(raw)] == raw, line
    text = "\n".join(lines)
    assert all(repr(name)[:50] in text for name in reader.fields if not name.startswith("GGUF."))
    assert all(repr(tensor.name) in text for tensor in reader.tensors)
    end = int(lines[-1].split()[0], 16)
    assert end <= reader.data_offset < end + 32


def test_dumps_of_other_containers(tmp_path: Path) -> None:
    legacy = command("inspect", Llama().write(tmp_path / "old.bin"), "--hex").stdout
    assert "n_embd" in legacy and "columns of tok_embeddings" in legacy
    assert "header_length" in command("inspect", ROOT / "fixtures/hf/ckpt/llama", "--hex").stdout


def test_parts_alone() -> None:
    keys = command("inspect", MODEL, "--keys").stdout
    assert "llama.block_count" in keys and "blk.0" not in keys
    tensors = command("inspect", MODEL, "--tensors").stdout
    assert "blk.0.attn_q.weight" in tensors and "llama.block_count" not in tensors
    assert set(asked(MODEL, "--keys")) == {"container", "version", "files", "metadata"}
