"""Small files to begin from: every container, packed by hand or taken from `fixtures/`, none larger than LARGEST."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from helpers.builders import Llama

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LARGEST = 70_000  # bytes: what is larger is mutated where nothing is decided
TINY = {"n_vocab": 270, "n_embd": 32, "n_head": 4, "n_head_kv": 4, "n_layer": 1, "n_ff": 32}


def small(*patterns: str, most: int = LARGEST) -> Iterator[bytes]:
    """Yield the small files of `fixtures/` that one of the patterns names."""
    for pattern in patterns:
        for path in sorted(FIXTURES.glob(pattern)):
            if path.is_file() and path.stat().st_size <= most:
                yield path.read_bytes()


def _text(text: str, count: str) -> bytes:
    return struct.pack(count, len(text)) + text.encode()


VALUES: tuple[tuple[str, int, bytes], ...] = (
    ("general.name", 8, b"\3\0\0\0\0\0\0\0abc"),
    ("llama.context_length", 4, struct.pack("<I", 64)),
    ("llama.embedding_length", 4, struct.pack("<I", 32)),
    ("llama.block_count", 4, struct.pack("<I", 1)),
    ("llama.feed_forward_length", 4, struct.pack("<I", 32)),
    ("llama.attention.head_count", 4, struct.pack("<I", 4)),
    ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
    ("a.bool", 7, b"\1"),
    ("a.array", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3)),
    ("a.nested", 9, struct.pack("<IQIQ2B", 9, 1, 0, 2, 7, 8)),
    ("tokenizer.ggml.model", 8, b"\5\0\0\0\0\0\0\0llama"),
    ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + b"".join(_text(t, "<Q") for t in ("<unk>", "a", "b"))),
    ("tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 0, -1, -2)),
    ("tokenizer.ggml.token_type", 9, struct.pack("<IQ3i", 5, 3, 2, 1, 1)),
)
TENSORS = (
    ("token_embd.weight", (32, 3)),
    ("output_norm.weight", (32,)),
    ("output.weight", (32, 3)),
    *(
        (f"blk.0.{name}.weight", shape)
        for name, shape in (
            ("attn_q", (32, 32)),
            ("attn_k", (32, 32)),
            ("attn_v", (32, 32)),
            ("attn_output", (32, 32)),
            ("attn_norm", (32,)),
            ("ffn_gate", (32, 32)),
            ("ffn_down", (32, 32)),
            ("ffn_up", (32, 32)),
            ("ffn_norm", (32,)),
        )
    ),
)


def gguf(version: int = 3, order: str = "<", tensors: Iterable[tuple[str, tuple[int, ...]]] = TENSORS) -> bytes:
    """Return a LLaMA of one block in GGUF, all of it F16 or F32."""
    count, tensors = order + ("I" if version == 1 else "Q"), tuple(tensors)
    data = b"GGUF" + struct.pack(order + "I", version) + struct.pack(count, len(tensors))
    data += struct.pack(count, len(VALUES) + 1) + _text("general.architecture", count)
    data += struct.pack(order + "I", 8) + _text("llama", count)
    for key, code, value in VALUES:
        data += _text(key, count) + struct.pack(order + "I", code) + (value if version > 1 else _narrow(code, value))
    at = 0
    for name, shape in tensors:
        data += _text(name, count) + struct.pack(order + "I", len(shape))
        data += struct.pack(order + f"{len(shape)}{count[-1]}", *shape)
        kind, size = (0, 4) if len(shape) == 1 else (1, 2)
        data += struct.pack(order + "IQ", kind, at)
        for axis in shape:
            size *= axis
        at += -(-size // 32) * 32
    return data + bytes(-len(data) % 32) + b"\0\x3c" * (at // 2)


def _narrow(code: int, value: bytes) -> bytes:
    """Return a value with the lengths of version 1, 32 bits wide."""
    if code == 8:
        return value[:4] + value[8:]
    if code != 9:
        return value
    kind, rest = value[:4], value[12:]
    if kind[0] == 8:
        texts, at = b"", 0
        while at < len(rest):
            size = int.from_bytes(rest[at : at + 8], "little")
            texts += rest[at : at + 4] + rest[at + 8 : at + 8 + size]
            at += 8 + size
        rest = texts
    elif kind[0] == 9:
        rest = rest[:8] + rest[12:]
    return kind + value[4:8] + rest


def gguf_files() -> Iterator[bytes]:
    for version in (1, 2, 3):
        yield gguf(version)
        yield gguf(version, tensors=())
    yield b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    yield from small("quantize/**/*.gguf", "lora/*/*.gguf", most=20_000)


def legacy_files() -> Iterator[bytes]:
    for container, version, kind in (
        ("ggml", None, "F16"),
        ("ggmf", 1, "F16"),
        ("ggjt", 1, "Q4_0_V1"),
        ("ggjt", 2, "Q4_0_V2"),
        ("ggjt", 3, "Q4_0"),
    ):
        yield Llama(**TINY, kind=kind, container=container, version=version).bytes()  # type: ignore[arg-type]
    yield from small("legacy-llama/lora/*ggml*.bin", "legacy-other/**/*.bin")
    yield b"algg" + struct.pack("<iii", 1, 4, 8)
    whole = sorted(FIXTURES.glob("legacy-other/*/*.bin"))
    yield from (path.read_bytes()[:4000] for path in whole)


def safetensors_headers() -> Iterator[bytes]:
    """Yield headers alone: what follows is made to fit them."""
    for path in sorted((*FIXTURES.glob("lora/*/*.safetensors"), *FIXTURES.glob("hf/ckpt/*/*.safetensors"))):
        data = path.read_bytes()[:60_000]
        size = int.from_bytes(data[:8], "little")
        if 0 < size < 9_000:
            yield data[8 : 8 + size]
    yield b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    yield b'{"a":{"dtype":"F8_E4M3","shape":[],"data_offsets":[0,1]}}'


@cache
def torch_pickle() -> bytes:
    """Return the data.pkl of a small checkpoint, as torch writes it."""
    import torch

    file = io.BytesIO()
    weights = {"a.weight": torch.ones(4, 8), "b.bias": torch.ones(3, dtype=torch.float16)}
    torch.save({"state_dict": weights | {"tied": weights["a.weight"].T}, "step": 3, "lr": 0.5}, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def torch_zip(pkl: bytes) -> bytes:
    """Return a torch file with this pickle and two storages."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pkl)
        archive.writestr("archive/data/0", bytes(128))
        archive.writestr("archive/data/1", bytes(6))
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


def torch_legacy() -> bytes:
    import torch

    file = io.BytesIO()
    torch.save({"w": torch.ones(2, 2)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def pickles() -> Iterator[bytes]:
    yield torch_pickle()
    for value in ({}, {"a": 1}, [1, (2, 3.5)], {"x": {"y": None}}, "text"):
        yield pickle.dumps(value, 2)


def recipes() -> Iterator[bytes]:
    from ggferry.quant.recipes.choose import recipe
    from ggferry.quant.recipes.text import format_recipe

    yield from (format_recipe(recipe(name)).encode() for name in ("q4_k_m", "q2_k", "iq2_xxs", "q8_0", "f16"))


def imatrix_dat() -> bytes:
    data = struct.pack("<i", 2)
    for name in ("blk.0.attn_q.weight", "output.weight"):
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii8f", 3, 8, *range(1, 9))
    return data + struct.pack("<ii", 4, 5) + b"a.txt"


def imatrix_gguf() -> Iterator[bytes]:
    """Yield importance matrices with sketches: of one matrix, of three, of each of three, and with one count alone."""
    from ggferry.formats.gguf.values import ValueType, array, string, u32
    from ggferry.formats.gguf.write import write_gguf
    from ggferry.quant.codec import block_type

    keys = {"general.type": string("imatrix"), "imatrix.datasets": array(ValueType.STRING, ["a"])}
    keys |= {
        "imatrix.chunk_count": u32(2),
        "imatrix.chunk_size": u32(40),
        "ggferry.imatrix.sketch": string("splitmix64"),
    }
    for counts, shape in (((40,), (2, 4)), ((40, 0, 9), (2, 4)), ((40, 0, 9), (3, 2, 4)), ((40,), (3, 2, 4))):
        many = (4,) if len(shape) == 2 and len(counts) == 1 else (3, 4)
        shapes = {"in_sum2": many, "in_sum": many, "counts": (len(counts), 1), "in_sketch": shape}
        tensors = [
            (f"blk.0.x.{name}", block_type("F32"), of, np.resize(np.array(counts if name == "counts" else (9, 1)), of))
            for name, of in shapes.items()
        ]
        with TemporaryDirectory() as folder:
            write_gguf(f"{folder}/i", keys, [(*each[:3], each[3].astype("<f4")) for each in tensors])
            yield Path(folder, "i").read_bytes()


def base_logits() -> bytes:
    """Return a file of a base's predictions: two chunks of eight tokens, a vocabulary of five."""
    row = struct.pack("<2f6H", 1e-4, -7.0, 0, 1, 300, 40000, 65535, 0)
    return b"_logits_" + struct.pack("<3i16i", 8, 5, 2, *(number % 5 for number in range(16))) + 6 * row


def plan_lines(root: str) -> bytes:
    """Return a plan of one model that is there and one that is not."""
    head = {"ggferry_plan": 1, "roots": [root], "dest": f"{root}/out", "outtype": "keep", "verify": "fast"}
    line = {
        "source": f"{root}/a.bin",
        "verdict": "convert",
        "container": "ggjt",
        "version": 3,
        "files": [{"path": f"{root}/a.bin", "bytes": 5, "version": "1"}],
        "bytes_in": 5,
        "bytes_out": 9,
        "memory": 10,
        "disk": 9,
        "output": f"{root}/out/a.gguf",
        "options": {"outtype": "f16"},
        "grades": {"exact": 3},
    }
    more = {"source": f"{root}/b", "verdict": "corrupt", "error": {"class": "CorruptError", "message": "m"}}
    return "\n".join(map(json.dumps, (head, line, more))).encode() + b"\n"
