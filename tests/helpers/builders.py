"""Tiny random models in every legacy container, packed by hand: independent of the readers they test."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAGIC = {"ggml": 0x67676D6C, "ggmf": 0x67676D66, "ggjt": 0x67676A74}


def random_rows(rng: np.random.Generator, kind: str, rows: int, columns: int) -> bytes:
    """Blocks of legacy type `kind` with plausible scales, row by row."""
    blocks = rows * columns // 32
    d = (rng.random(blocks) * 0.02 + 0.001).astype("<f4")
    m = (-rng.random(blocks) * 0.1).astype("<f4")
    nibbles = rng.integers(0, 256, (blocks, 16), dtype=np.uint8)
    quants = rng.integers(-127, 128, (blocks, 32), dtype=np.int8).view(np.uint8)

    def b(x: np.ndarray, dtype: str) -> np.ndarray:
        return x.astype(dtype).reshape(blocks, 1).view(np.uint8).reshape(blocks, -1)

    match kind:
        case "F32":
            return rng.normal(0, 0.08, rows * columns).astype("<f4").tobytes()
        case "F16":
            return rng.normal(0, 0.08, rows * columns).astype("<f2").tobytes()
        case "Q4_0_V1" | "Q4_0_V2":
            parts = [b(d, "<f4"), nibbles]
        case "Q4_0_V1_exact":
            parts = [b(d.astype("<f2"), "<f4"), nibbles]
        case "Q4_1_V1" | "Q4_1_V2":
            parts = [b(d, "<f4"), b(m, "<f4"), nibbles]
        case "Q4_0":
            parts = [b(d, "<f2"), nibbles]
        case "Q4_1":
            parts = [b(d, "<f2"), b(m, "<f2"), nibbles]
        case "Q8_0_V1":
            parts = [b(d / 8, "<f4"), quants]
        case "Q8_0":
            parts = [b(d / 8, "<f2"), quants]
        case "Q4_0_PLANAR":
            per = columns // 32
            return b"".join(
                d[r * per : (r + 1) * per].tobytes() + nibbles[r * per : (r + 1) * per].tobytes() for r in range(rows)
            )
        case "Q4_1_PLANAR":
            per = columns // 32
            return b"".join(
                m[r * per : (r + 1) * per].tobytes()
                + d[r * per : (r + 1) * per].tobytes()
                + nibbles[r * per : (r + 1) * per].tobytes()
                for r in range(rows)
            )
        case _:
            raise ValueError(kind)
    return np.concatenate(parts, axis=1).tobytes()


CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8}


def code_of(kind: str) -> int:
    return CODES[kind.removesuffix("_exact").removesuffix("_PLANAR").removesuffix("_V1").removesuffix("_V2")]


@dataclass
class Llama:
    """Shapes of a tiny LLaMA; every dimension different, head size ≥ 8, 1 < n_head_kv < n_head by default."""

    n_vocab: int = 300
    n_embd: int = 96
    n_head: int = 6
    n_head_kv: int = 3
    n_layer: int = 3
    n_ff: int = 160
    n_mult: int = 32
    kind: str = "F32"
    container: str = "ggjt"
    version: int | None = 3
    seed: int = 0
    ftype: int = 0

    @property
    def header(self) -> list[int]:
        return [
            self.n_vocab,
            self.n_embd,
            self.n_mult,
            self.n_head,
            self.n_layer,
            self.n_embd // self.n_head,
            self.ftype,
        ]

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes (outermost first) in the order convert.py wrote them."""
        kv = self.n_head_kv * self.n_embd // self.n_head
        table = [
            ("tok_embeddings.weight", (self.n_vocab, self.n_embd)),
            ("norm.weight", (self.n_embd,)),
            ("output.weight", (self.n_vocab, self.n_embd)),
        ]
        for n in range(self.n_layer):
            table += [
                (f"layers.{n}.attention.wq.weight", (self.n_embd, self.n_embd)),
                (f"layers.{n}.attention.wk.weight", (kv, self.n_embd)),
                (f"layers.{n}.attention.wv.weight", (kv, self.n_embd)),
                (f"layers.{n}.attention.wo.weight", (self.n_embd, self.n_embd)),
                (f"layers.{n}.attention_norm.weight", (self.n_embd,)),
                (f"layers.{n}.feed_forward.w1.weight", (self.n_ff, self.n_embd)),
                (f"layers.{n}.feed_forward.w2.weight", (self.n_embd, self.n_ff)),
                (f"layers.{n}.feed_forward.w3.weight", (self.n_ff, self.n_embd)),
                (f"layers.{n}.ffn_norm.weight", (self.n_embd,)),
            ]
        return table

    def vocabulary(self) -> list[bytes]:
        """LLaMA's positions: three specials, 256 bytes, then pieces."""
        pieces = [b" ", b"t", b"a", b"e", b" a", b" t", b"th", b" th", b"he", b" the", b"in", b"er"]
        pieces += [b"w%d" % i for i in range(self.n_vocab)]
        return [b" \xe2\x81\x87 ", b"", b"", *[bytes([i]) for i in range(256)], *pieces][: self.n_vocab]

    def prelude(self) -> bytes:
        """Magic, version, header, vocabulary."""
        data = struct.pack("<I", MAGIC[self.container])
        if self.version is not None:
            data += struct.pack("<i", self.version)
        data += struct.pack("<7i", *self.header)
        for i, token in enumerate(self.vocabulary()):
            data += struct.pack("<i", len(token)) + token
            if self.container != "ggml":
                data += struct.pack("<f", 0.0 if i < 259 else -float(i - 259))
        return data

    def part(self, number: int, count: int) -> bytes:
        """One of the files that the model lies in, each with the whole vocabulary and its share of every matrix."""
        rng = np.random.default_rng(self.seed)
        data = bytearray(self.prelude())
        for name, shape in self.tensors():
            kind = "F32" if len(shape) == 1 else self.kind
            raw = random_rows(rng, kind, shape[0] if len(shape) > 1 else 1, shape[-1])
            if len(shape) == 1:
                raw = (1 + rng.normal(0, 0.1, shape[0])).astype("<f4").tobytes()
            elif count > 1:
                rows = np.frombuffer(raw, np.uint8).reshape(shape[0], -1)
                by_columns = name.startswith("tok_embeddings") or name.endswith((".wo.weight", ".w2.weight"))
                shape = tuple(n // count if axis == by_columns else n for axis, n in enumerate(shape))
                raw = np.split(rows, count, axis=int(by_columns))[number].tobytes()
            data += record(name, code_of(kind), shape, raw, 32 if self.container == "ggjt" else 1, len(data))
        return bytes(data)

    def bytes(self) -> bytes:
        """The whole file."""
        return self.part(0, 1)

    def write(self, path: Path, parts: int = 1) -> Path:
        for number in range(parts):
            (path if not number else path.with_name(f"{path.name}.{number}")).write_bytes(self.part(number, parts))
        return path


def record(name: str, code: int, shape: tuple[int, ...], data: bytes, alignment: int, at: int) -> bytes:
    """A tensor record that begins at file offset `at`."""
    head = struct.pack("<3i", len(shape), len(name.encode()), code) + struct.pack(f"<{len(shape)}i", *shape[::-1])
    head += name.encode()
    return head + bytes(-(at + len(head)) % alignment) + data
