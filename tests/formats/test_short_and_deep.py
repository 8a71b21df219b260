"""Files of a byte or two, files of nothing, and files nested deeper than Python's stack: words, never a traceback."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.converters.analysis.other_formats import of_head
from ggferry.converters.proof.runtime_keys import architectures, loader
from ggferry.formats.errors import CorruptError, OutOfRangeError
from ggferry.formats.files.patched_start import journal_of, load
from ggferry.formats.memory_cap import limited
from helpers.attack_tools import typed
from helpers.builders import Llama
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.attack

DEEP = 100_000
NOTHING = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)


def test_every_first_byte_alone_is_looked_at() -> None:
    for byte in range(256):
        of_head(bytes([byte]), "x")


@pytest.mark.parametrize("data", [b"\x08", b"\x08\x07", b"\x1f", b"G", b"\x80", b"{", b"\0", b"P"])
@pytest.mark.parametrize("command", ["doctor", "inspect"])
def test_a_file_of_a_byte(command: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    done = typed(command, tmp_path / "x")
    assert done.code in (4, 5) and "internal" not in done.said


@pytest.mark.parametrize("tool", ["edit", "split", "merge", "hash", "diff", "verify", "convert", "quantize", "doctor"])
def test_a_gguf_of_no_keys_and_no_tensors(tool: str, tmp_path: Path) -> None:
    source = tmp_path / "nothing.gguf"
    source.write_bytes(NOTHING)
    out = tmp_path / "o.gguf"
    more = {
        "edit": ("--set", "general.name=x", "-o", out),
        "split": ("--split-max-tensors", "2", "-o", out),
        "merge": ("-o", out),
        "diff": (source,),
        "convert": ("-o", out),
        "quantize": (out, "q8_0"),
    }.get(tool, ())
    done = typed(tool, source, *more)
    assert done.code in range(8) and "internal" not in done.said
    assert source.read_bytes() == NOTHING


@pytest.mark.parametrize("name", ["", "*", "pre", "tokenizer llama"])
def test_a_section_of_the_list_of_keys_is_no_architecture(name: str) -> None:
    """A file may call its architecture anything."""
    assert name not in architectures() and loader(name) is None


# --- nesting ---


BESIDE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "model.safetensors.index.json",
    "added_tokens.json",
)


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("text", ["[" * DEEP, '{"a":' * DEEP], ids=["lists", "objects"])
def test_json_nested_too_deep(name: str, text: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fixtures/hf/ckpt/llama_shards_bf16", tmp_path / "m", symlinks=False)
    (tmp_path / "m" / name).unlink(missing_ok=True)
    (tmp_path / "m" / name).write_text(text)
    for command in ("inspect", "doctor"):
        assert "internal" not in typed(command, tmp_path / "m").said
    done = typed("convert", tmp_path / "m", "--dry-run", "-o", tmp_path / "o.gguf")
    assert "internal" not in done.said and done.code in (0, 3, 4, 5)


@pytest.mark.parametrize("depth", [90, 5_000, DEEP])
@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
def test_a_safetensors_header_nested_too_deep(opening: str, depth: int, tmp_path: Path) -> None:
    closing = "]" if opening == "[" else "}"
    text = '{"x":{"dtype":"F32","shape":' + opening * depth + "1" + closing * depth + ',"data_offsets":[0,4]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(4))
    for command in (("inspect",), ("inspect", "--hex"), ("doctor",)):
        done = typed(*command, path)
        assert done.code in (4, 5) and "internal" not in done.said


PICKLES = {
    "tuples": b"\x80\x02)" + b"\x85" * DEEP + b".",
    "lists": b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    "dicts": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * DEEP + b"Ns" + b"s" * (DEEP - 1) + b".",
    "marks": b"\x80\x02" + b"(" * DEEP + b".",
    "tuple as key": b"\x80\x02})" + b"\x85" * DEEP + b"Ns.",
    "frozen sets": b"\x80\x04(" + b"\x91" * DEEP + b".",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_nested_too_deep(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", PICKLES[kind])
        archive.writestr("archive/version", "3\n")
    for command in (("inspect", path), ("doctor", path)):
        done = typed(*command)
        assert done.code in (4, 5) and "internal" not in done.said


def test_a_plan_nested_too_deep(tmp_path: Path) -> None:
    head = json.dumps({"ggferry_plan": 1, "roots": [str(tmp_path)], "dest": None})
    (tmp_path / "p.jsonl").write_text(f"{head}\n{'[' * DEEP}\n")
    done = typed("apply", tmp_path / "p.jsonl")
    assert done.code == 5 and "line 2 of the plan" in done.err


@pytest.mark.parametrize("receipt", ["[" * DEEP, '{"ggferry":' * DEEP, '{"a": NaN}'])
def test_a_receipt_that_is_none(receipt: str, tmp_path: Path) -> None:
    source, out = Llama(kind="F16").write(tmp_path / "old.bin"), tmp_path / "m.gguf"
    assert typed("convert", source, "-o", out, "--verify", "none").code == 0
    Path(f"{out}.receipt.json").write_text(receipt)
    for command in (("verify", source, out, "--verify", "fast"), ("inspect", out)):
        assert "internal" not in typed(*command).said


@pytest.mark.parametrize("head", [b"[" * DEEP, b"{}", b"5", b'{"bytes":"x","beside":[],"size":1}', b"\xff"])
def test_a_journal_of_an_edit_that_ours_did_not_write(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(NOTHING)
    Path(journal_of(str(path))).write_bytes((body := _magic() + head + b"\n") + blake3(body).digest())
    with pytest.raises(CorruptError, match="was not written by ggferry edit"):
        load(str(path))


def _magic() -> bytes:
    from ggferry.formats.files import patched_start

    return patched_start._MAGIC


def test_a_reader_that_recurses_ends_in_words() -> None:
    def down(n: int) -> int:
        return down(n + 1) + 1

    with pytest.raises(OutOfRangeError, match="nested too deeply") as caught, limited("/the/file"):
        down(0)
    assert caught.value.path == "/the/file"
