"""Witnesses of block arithmetic: ggml's own C functions, out of the prebuilt xllamacpp, and the gguf package."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType


class TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class Ggml:
    """Today's ggml, called row by row."""

    def __init__(self) -> None:
        package = importlib.util.find_spec("xllamacpp")
        assert package is not None and package.submodule_search_locations
        (library,) = Path(package.submodule_search_locations[0]).glob("xllamacpp*.so")
        self.library = ctypes.CDLL(str(library))
        self.library.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)

    def traits(self, ggml_id: int) -> TypeTraits:
        return self.library.ggml_get_type_traits(ggml_id).contents

    def can_decode(self, kind: BlockType) -> bool:
        return hasattr(self.library, _function("dequantize_row", kind))

    def decode(self, kind: BlockType, rows: np.ndarray, columns: int) -> np.ndarray:
        out = np.empty((len(rows), columns), np.float32)
        self._call(_function("dequantize_row", kind), np.ascontiguousarray(rows), out, out.size)
        return out

    def encode(self, kind: BlockType, values: np.ndarray) -> np.ndarray:
        out = np.empty((len(values), kind.row_bytes(values.shape[1])), np.uint8)
        self._call(_function("quantize_row", kind) + "_ref", np.ascontiguousarray(values), out, values.size)
        return out

    def quantize(self, kind: BlockType, values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """`ggml_quantize_chunk`, which llama-quantize calls, on float32 `(rows, columns)`."""
        rows, columns = values.shape
        out = np.zeros((rows, kind.row_bytes(columns)), np.uint8)
        call = self.library.ggml_quantize_chunk
        call.restype = ctypes.c_size_t
        call.argtypes = [ctypes.c_int, *2 * [ctypes.c_void_p], *3 * [ctypes.c_int64], ctypes.c_void_p]
        important = None if weights is None else weights.ctypes.data
        written = call(kind.ggml_id, values.ctypes.data, out.ctypes.data, 0, rows, columns, important)
        assert written == out.nbytes
        return out

    def convert(self, function: str, values: np.ndarray, dtype: str) -> np.ndarray:
        """One of `ggml_fp32_to_fp16_row` and its kin."""
        out = np.empty(values.shape, dtype)
        self._call(function, np.ascontiguousarray(values), out, values.size)
        return out

    def _call(self, function: str, source: np.ndarray, target: np.ndarray, count: int) -> None:
        call = getattr(self.library, function)
        call.restype = None
        call(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(target.ctypes.data), ctypes.c_int64(count))


def _function(stem: str, kind: BlockType) -> str:
    return f"{stem}_{kind.name.lower()}".replace("_k", "_K")


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    return Ggml()


Blocks = Callable[[BlockType, int, int], np.ndarray]


def any_blocks(kind: BlockType, rows: int, columns: int) -> np.ndarray:
    """Random bytes: every code, and scales of every kind, infinite and NaN among them."""
    seed = int.from_bytes(kind.name.encode(), "big")
    return np.random.default_rng(seed).integers(0, 256, (rows, kind.row_bytes(columns)), dtype=np.uint8)


def finite_blocks(kind: BlockType, rows: int, columns: int) -> np.ndarray:
    """Random codes with finite scales of either sign, zeros, subnormals and the largest float16s among them."""
    from ggferry.quant.blocks import as_blocks

    data = any_blocks(kind, rows, columns)
    generator = np.random.default_rng(1)
    scales = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0xA42D], "<u2").view("<f2")
    for name, array in as_blocks(kind, data).items():
        if array.dtype.kind == "f":
            array[...] = np.where(
                generator.random(array.shape) < 0.1,
                scales[generator.integers(0, len(scales), array.shape)],
                generator.normal(0, 1e-2, array.shape),
            )
        elif (kind.name, name) == ("IQ1_M", "scales"):
            array[..., 3] &= 0xBFFF
        elif (kind.name, name) == ("MXFP4", "e"):
            array[...] = np.minimum(array, 252)
        elif (kind.name, name) == ("BF16", "x"):
            array &= 0xBFFF
        elif kind.name.startswith("F8"):
            array &= 0xBB
    return data


@pytest.fixture(scope="session")
def blocks() -> dict[str, Blocks]:
    """Ways to fill rows of a type: `blocks["any"](kind, rows, columns)` gives uint8 `(rows, row bytes)`."""
    return {"any": any_blocks, "finite": finite_blocks}


def same_floats(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Elementwise: equal bits, or both NaN."""
    equal: np.ndarray = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    return equal


@pytest.fixture(scope="session")
def same() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return same_floats


def read_llama_tensors(path: Path, names: dict[int, str]) -> Iterator[tuple[int, np.ndarray, int]]:
    """(type code, rows uint8, columns) of every tensor of a LLaMA file of any of the containers."""
    data = path.read_bytes()
    scored = data[:4] != b"lmgg"
    at = 8 if scored else 4
    (vocabulary,) = struct.unpack_from("<i", data, at)
    at += 28
    for _ in range(vocabulary):
        at += 4 + struct.unpack_from("<i", data, at)[0] + 4 * scored
    while at < len(data):
        dimensions, name_length, code = struct.unpack_from("<3i", data, at)
        columns, *rows = struct.unpack_from(f"<{dimensions}i", data, at + 12)
        at += 12 + 4 * dimensions + name_length
        if data[:4] == b"tjgg":
            at += -at % 32
        size = block_type(names[code]).nbytes((*rows, columns))
        yield code, np.frombuffer(data, np.uint8, size, at).reshape(math.prod(rows), -1), columns
        at += size


@pytest.fixture(scope="session")
def llama_tensors() -> Callable[[Path, dict[int, str]], Iterator[tuple[int, np.ndarray, int]]]:
    """A walker of its own, so that the codecs are not tested through the readers."""
    return read_llama_tensors
