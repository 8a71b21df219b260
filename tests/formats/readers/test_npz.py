"""MLX's .npz files: fixtures that mlx-examples' own converter wrote, and files that NumPy writes, whole and broken."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.converters.understand import understand
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    UnexpectedTensorError,
    UnsafePickleError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.tensor_read import read_rows
from helpers.attack_tools import typed
from helpers.third_party_fixtures import FIXTURES

HERE, PLAIN = FIXTURES / "mlx-npz", FIXTURES / "hf/ckpt/llama"
ANSWERS = json.loads((HERE / "answers.json").read_text())["values"]
TOKENS = (1, 17, 4, 90, 33, 2, 61, 5, 44, 100, 12, 77, 3, 3, 58, 29)


@pytest.mark.parametrize("name", ANSWERS)
def test_mlx_and_mlx_examples_agree(name: str, tmp_path: Path) -> None:
    """Every value is MLX's, and the GGUF file gives the logits that mlx-examples' own model computes."""
    checkpoint = dequantized(open_checkpoint(str(HERE / name)))
    assert len(checkpoint.tensors) == len(ANSWERS[name]) == 21
    for tensor, ref in checkpoint.tensors.items():
        values = values_of(checkpoint, ref, 0, ref.rows).astype(np.float32) + 0.0
        assert hashlib.sha256(values.tobytes()).hexdigest() == ANSWERS[name][tensor], tensor
    result = convert(Request(str(HERE / name), str(tmp_path / "o.gguf")))[0]
    assert result.receipt["output"]["types"] == "Q4_1 ×16, F32 ×5"
    assert typed("verify", HERE / name, result.path).code == 0
    with np.load(HERE / "logits.npz") as stored:
        expected = stored[name]
    again = open_checkpoint(result.path)
    found = np.asarray(forward(understand(again), list(TOKENS)))
    again.close()
    checkpoint.close()
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()


def saved(folder: Path, save: Callable[..., Any] = np.savez, **changed: np.ndarray) -> Path:
    """A folder with the plain model's own names and configuration, as mlx-examples' hf_llm wrote them."""
    folder.mkdir()
    for each in PLAIN.glob("*.*"):
        if each.suffix != ".safetensors":
            shutil.copy(each, folder)
    save(folder / "weights.00.npz", **{**load_file(PLAIN / "model.safetensors"), **changed})
    return folder


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_names_of_transformers(save: Callable[..., Any], tmp_path: Path) -> None:
    found, plain = open_checkpoint(str(saved(tmp_path / "m", save))), open_checkpoint(str(PLAIN))
    assert found.tensors.keys() == plain.tensors.keys() and found.metadata == plain.metadata
    for name, ref in plain.tensors.items():
        theirs = read_rows(plain, ref, 0, ref.rows).tobytes()
        assert read_rows(found, found.tensors[name], 0, ref.rows).tobytes() == theirs
    assert understand(found).architecture.name == "llama"
    found.close()
    plain.close()
    result = convert(Request(str(tmp_path / "m"), str(tmp_path / "o.gguf"), level="fast"))[0]
    assert [file["name"] for file in result.receipt["source"]["files"]] == ["weights.00.npz"]


def test_arrays_as_numpy_lays_them_out(tmp_path: Path) -> None:
    """By columns, big-endian, bfloat16 as MLX calls it, a number, no element at all."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "by_columns": np.asfortranarray(matrix),
        "swapped": matrix.astype(">f2"),
        "bf16": (matrix.view(np.uint32) >> 16).astype("<u2").view("V2"),
        "number": np.float32(7.5),
        "none": np.zeros((0, 4), np.float16),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    found = open_checkpoint(str(tmp_path / "a.npz"))
    kinds = {name: (ref.type.name, ref.shape) for name, ref in found.tensors.items()}
    assert kinds == {
        "by_columns": ("F32", (3, 4)),
        "swapped": ("F16", (3, 4)),
        "bf16": ("BF16", (3, 4)),
        "number": ("F32", ()),
        "none": ("F16", (0, 4)),
    }
    for name in ("by_columns", "swapped", "bf16"):
        assert np.array_equal(values_of(found, found.tensors[name], 0, 3), matrix), name
    found.close()


def array(data: np.ndarray, tmp_path: Path, **options: Any) -> bytes:
    np.save(tmp_path / "x.npy", data, **options)
    return (tmp_path / "x.npy").read_bytes()


def test_what_is_wrong_with_an_array(tmp_path: Path) -> None:
    good = array(np.zeros((2, 3), np.float32), tmp_path)
    objects = array(np.array([{}], object), tmp_path, allow_pickle=True)
    cases: dict[str, tuple[bytes, type[GgferryError], str]] = {
        "objects": (objects, UnsafePickleError, "holds Python objects"),
        "short": (good[:-1], InconsistentError, "found 23 bytes, expected 24 bytes"),
        "long": (good + b"\0", InconsistentError, "found 25 bytes, expected 24 bytes"),
        "shape": (good.replace(b"(2, 3)", b"(2,-3)"), GgferryError, "array 'w'"),
        "huge": (good.replace(b"(2, 3), }          ", b"(9999999999999999,)}"[:19]), GgferryError, "array 'w'"),
        "code": (good.replace(b"'<f4'", b"f(2) "), CorruptError, "header of array 'w'"),
        "deep": (good[:10] + b"(" * 118, CorruptError, "array 'w'"),
        "magic": (b"\x93NUMPX" + good[6:], CorruptError, "version 1.0 or 2.0"),
        "version": (good[:6] + b"\3\0" + good[8:], CorruptError, "version 1.0 or 2.0"),
        "complex": (array(np.zeros(2, np.complex64), tmp_path), UnsupportedTypeError, "found complex64"),
        "records": (array(np.zeros(2, [("a", "f4")]), tmp_path), UnsupportedTypeError, "numbers of array"),
        "empty": (b"", CorruptError, "array 'w'"),
    }
    for name, (data, kind, words) in cases.items():
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("w.npy", data)
        with pytest.raises(kind, match=words):
            open_checkpoint(str(tmp_path / "a.npz"))
            pytest.fail(name)


def test_what_is_wrong_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(GgferryError):
        open_checkpoint(str(tmp_path / "empty.npz"))
    folder = saved(tmp_path / "m")
    whole = (folder / "weights.00.npz").read_bytes()
    for size in [*range(8, 120, 16), len(whole) // 2, len(whole) - 9]:
        (folder / "weights.00.npz").write_bytes(whole[:size])
        with pytest.raises(GgferryError):
            open_checkpoint(str(folder / "weights.00.npz"))
    place = whole.index(b"\x93NUMPY") + 200
    (folder / "weights.00.npz").write_bytes(whole[:place] + b"\1\2\3\4\5" + whole[place + 5 :])
    with pytest.raises(CorruptError, match="CRC-32"):
        convert(Request(str(folder), str(tmp_path / "o.gguf"), level="fast"))
    (folder / "weights.00.npz").write_bytes(whole)
    shutil.copy(folder / "weights.00.npz", folder / "weights.02.npz")
    with pytest.raises(NotFoundError, match=r"weights\.01\.npz"):
        open_checkpoint(str(folder))
    shutil.move(folder / "weights.02.npz", folder / "weights.01.npz")
    with pytest.raises(DuplicateError):
        open_checkpoint(str(folder))
    with zipfile.ZipFile(folder / "weights.00.npz", "a") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(UnsupportedError, match=r"not an array: found notes\.txt"):
        open_checkpoint(str(folder))


def changed(folder: Path, name: str, **keys: Any) -> Path:
    shutil.copytree(HERE / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def test_models_that_are_not_carried(tmp_path: Path) -> None:
    cases: tuple[tuple[dict[str, Any], type[GgferryError], str], ...] = (
        ({"model_type": "phi2"}, UnsupportedError, "names of this class: found phi2"),
        ({"moe": {"num_experts": 8}}, UnsupportedError, "found a mixture of experts"),
        ({"n_heads": None}, MissingError, "n_heads in config.json"),
        ({"n_heads": 7}, GgferryError, "rows of layers"),
        ({"dim": "x"}, GgferryError, "x"),
    )
    for number, (keys, kind, words) in enumerate(cases):
        checkpoint = open_checkpoint(str(changed(tmp_path / str(number), "meta-q4", **keys)))
        with pytest.raises(kind, match=words):
            understand(checkpoint)
        checkpoint.close()


def test_meta_s_frequencies_are_dropped_and_other_tensors_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "m", "meta-q4")
    with np.load(folder / "weights.npz") as stored:
        arrays = dict(stored)
    np.savez(folder / "weights.npz", **arrays, **{"rope.freqs": np.zeros(8, np.float16)})
    checkpoint = open_checkpoint(str(folder))
    graph = understand(checkpoint)
    assert [drop.ref.name for drop in graph.dropped] == ["rope.freqs"] and not graph.dropped[0].loses
    checkpoint.close()
    np.savez(folder / "weights.npz", **arrays, **{"layers.0.attention.wz.weight": np.zeros(8, np.float16)})
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(UnexpectedTensorError, match=r"found layers\.0\.attention\.wz\.weight"):
        understand(checkpoint)
    checkpoint.close()
