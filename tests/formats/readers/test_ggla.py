"""ggla adapters: what convert-lora-to-ggml.py wrote, and every way such a file can be wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    EncodingError,
    GgferryError,
    MissingError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
    UnexpectedTensorError,
)

RNG = np.random.default_rng(11)
NAME = "layers.0.attention.wv.weight"


def ggla(pairs: dict[str, tuple[np.ndarray, np.ndarray]], r: int, alpha: int, version: int = 1) -> bytes:
    """A file as convert-lora-to-ggml.py packed it: A `(r, columns)` is written transposed, B `(rows, r)` as it is."""
    data = bytearray(struct.pack("<4sIii", b"algg", version, r, alpha))
    for name, (a, b) in pairs.items():
        for side, array in (("loraA", a.T), ("loraB", b)):
            data += packed(f"{name}.{side}", array, len(data))
    return bytes(data)


def packed(name: str, array: np.ndarray, at: int) -> bytes:
    head = struct.pack("<3i", 2, len(name.encode()), {"float32": 0, "float16": 1}[array.dtype.name])
    head += struct.pack("<2i", *array.shape[::-1]) + name.encode()
    return head + bytes(-(at + len(head)) % 32) + np.ascontiguousarray(array).tobytes()


def pair(r: int = 4, columns: int = 24, rows: int = 40, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(r, columns)).astype(dtype), RNG.normal(size=(rows, r)).astype("float32")


def opened(tmp_path: Path, data: bytes):
    path = tmp_path / "adapter.bin"
    path.write_bytes(data)
    return open_checkpoint(str(path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_is_shown_as_torch_had_it(tmp_path: Path, dtype: str) -> None:
    a, b = pair(dtype=dtype)
    found = opened(tmp_path, ggla({NAME: (a, b)}, 4, 8))
    assert (found.container, found.version, dict(found.header)) == ("ggla", 1, {"r": 4, "alpha": 8})
    ref_a, ref_b = found.tensors[f"{NAME}.loraA"], found.tensors[f"{NAME}.loraB"]
    assert ref_a.shape == (4, 24) and ref_b.shape == (40, 4)
    assert np.array_equal(values_of(found, ref_a, 0, 4), a.astype(np.float32))
    assert np.array_equal(values_of(found, ref_a, 1, 3), a[1:3].astype(np.float32))
    assert np.array_equal(values_of(found, ref_b, 0, 40), b)


def test_the_oracle_is_its_peft_source(fixtures: Path) -> None:
    import torch

    folder = fixtures / "legacy-llama" / "lora"
    source = torch.load(folder / "f32-adapter_model.bin", weights_only=True)
    found = open_checkpoint(str(folder / "f32-ggml-adapter-model.bin"))
    assert len(found.tensors) == len(source) == 24
    for expected, ref in zip(source.values(), found.tensors.values(), strict=True):
        assert np.array_equal(values_of(found, ref, 0, ref.rows), expected.float().numpy())


def edited(at: int, code: str, value: int) -> bytes:
    data = bytearray(ggla({NAME: pair()}, 4, 8))
    struct.pack_into(code, data, at, value)
    return bytes(data)


WHOLE = ggla({NAME: pair()}, 4, 8)
BAD = {
    "version": (edited(4, "<I", 2), OutOfRangeError, "version"),
    "rank": (edited(8, "<i", 0), OutOfRangeError, "r:"),
    "rank of the header": (edited(8, "<i", 5), ShapeError, "rank"),
    "three dimensions": (edited(16, "<i", 3), OutOfRangeError, "dims"),
    "name length": (edited(20, "<i", 5000), OutOfRangeError, "length"),
    "type": (edited(24, "<i", 2), OutOfRangeError, "type"),
    "columns": (edited(32, "<i", 2**31 - 1), TruncatedError, "ends inside"),
    "negative": (edited(32, "<i", -1), OutOfRangeError, "dimension"),
    "not UTF-8": (edited(36, "<B", 0xFF), EncodingError, "UTF-8"),
    "padding": (edited(36 + len(NAME) + 7, "<B", 1), OverlapError, "padding"),
    "another name": (WHOLE.replace(b"loraA", b"loraC"), UnexpectedTensorError, "tensor is not part of a pair"),
    "no tensor": (WHOLE[:16], MissingError, "adapter has no tensors"),
    "half a pair": (WHOLE[: WHOLE.index(b"loraB") - 20 - len(NAME) - 1], MissingError, "loraB"),
    "twice": (WHOLE + packed(f"{NAME}.loraA", pair()[0].T.copy(), len(WHOLE)), DuplicateError, "twice"),
    "cut": (WHOLE[:-1], TruncatedError, "loraB"),
    "header cut": (WHOLE[:11], TruncatedError, "ends inside"),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(tmp_path: Path, case: str) -> None:
    data, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        opened(tmp_path, data)
    assert isinstance(caught.value, CorruptError) and caught.value.exit_code == 5 and caught.value.path


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_give_a_result_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, 130))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(4, len(raw)))]
    try:
        opened(tmp_path, bytes(raw)).close()
    except GgferryError as error:
        assert str(error)
