"""Bad files of the lists of malformed inputs that no other module has: N01–N09, and single lines of T and P.

The readers of LLaMA's kin, GGUF, safetensors and PyTorch have lists of their own beside this one; what is wrong with a
model rather than with its file is in tests/converters/test_bad_models.py.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ggferry
from ggferry.formats import errors as e
from ggferry.formats.reader import find_reader
from helpers.builders import Llama
from helpers.legacy_families import path_of, rewritten

MEMORY = 8 << 20
"""Bytes that the refusal of a file of some 100 KiB may take."""


def legacy(file: str) -> bytes:
    """A committed file of a family beside LLaMA."""
    return Path(path_of(file)).read_bytes()


GPT2, NEOX, MPT = "gpt2/gpt2-s64-g2-q5_0.bin", "gptneox/gptneox-par-s64-g2-q4_0.bin", "mpt/mpt-clip-s64-g2-q4_0.bin"
RWKV, FALCON = "rwkv/rwkv4-s64-rwkv101-q4_1.bin", "falcon/falcon40b-s64-ggcc-q5_0.bin"
WHISPER, PLAIN = "whisper/whisper-v600-q5_0.bin", "gpt2/gpt2-s64-pre20230329-h5script-f16.bin"
SMALL = Llama(
    n_vocab=262, n_embd=32, n_head=4, n_head_kv=4, n_layer=2, n_ff=64, kind="F16", container="ggmf", version=1
)


def field(file: str, place: int, value: float) -> bytes:
    """The file with another value in the field of four bytes at `place`."""
    data = bytearray(legacy(file))
    struct.pack_into("<f" if isinstance(value, float) else "<i", data, place, value)
    return bytes(data)


def vocabulary(fields: int) -> bytes:
    """A header of so many small numbers behind the magic that eight families share, 64 tokens, and no tensor."""
    header = (64, 64, 64, 4, 2, 16, 1)[:fields]
    return b"lmgg" + struct.pack(f"<{fields}i", *header) + b"".join(struct.pack("<i", 1) + b"x" for _ in range(64))


def resized(change: Callable[[tuple[int, ...], bytes], tuple[tuple[int, ...], bytes]]) -> bytes:
    """A GPT-2 whose first bias has another shape or other data."""

    def bias(name: str, code: int, shape: tuple[int, ...], data: bytes) -> tuple[int, tuple[int, ...], bytes]:
        return (code, *(change(shape, data) if name == "model/h0/attn/c_attn/b" else (shape, data)))

    return rewritten(path_of(PLAIN), bias)


def filters(rows: int, columns: int) -> bytes:
    """A Whisper whose matrix of mel filters has another size, with the bytes for it."""
    data = legacy(WHISPER)
    old = struct.unpack_from("<2i", data, 48)
    return data[:48] + struct.pack("<2i", rows, columns) + bytes(4 * rows * columns) + data[56 + 4 * old[0] * old[1] :]


# name → the file, the family by --arch, the error, words of it
N_LIST: dict[str, tuple[Callable[[], bytes], str | None, type[e.GgferryError], str]] = {
    "N01 a vocabulary that three families may have": (
        lambda: vocabulary(7),
        None,
        e.MissingError,
        r"found (?=.*falcon)(?=.*gptneox-2023-04)(?=.*llama).*--arch NAME",
    ),
    "N01 six fields that fit no family": (lambda: vocabulary(6)[:60], None, e.CorruptError, "--arch NAME"),
    "N01 the magic alone": (lambda: b"lmgg", None, e.TruncatedError, "ends inside"),
    "N02 quantization version 9": (lambda: field(GPT2, 24, 9008), "gpt2", e.OutOfRangeError, "version 9: found 9008"),
    "N02 quantization version 3": (lambda: field(GPT2, 24, 3008), "gpt2", e.OutOfRangeError, "version 3: found 3008"),
    "N02 negative": (lambda: field(GPT2, 24, -1000), "gpt2", e.OutOfRangeError, "ftype: found -1000"),
    "N02 unknown type": (lambda: field(GPT2, 24, 2099), "gpt2", e.OutOfRangeError, "ftype 99: found 2099"),
    "N02 of no family that is named": (lambda: field(GPT2, 24, 9008), None, e.CorruptError, "read as .*--arch NAME"),
    "N03 one token too many": (lambda: field(GPT2, 28, 513), "gpt2", e.InconsistentError, "found 513, expected 512"),
    "N03 one token too few": (lambda: field(GPT2, 28, 511), "gpt2", e.InconsistentError, "found 511, expected 512"),
    "N03 header of another size": (lambda: field(GPT2, 4, 600), "gpt2", e.InconsistentError, "found 512, expected 600"),
    "N03 of no family that is named": (lambda: field(GPT2, 28, 513), None, e.CorruptError, "read as .*--arch NAME"),
    "N04 shape and data one less": (
        lambda: resized(lambda shape, data: ((shape[0] - 1,), data[:-4])),
        None,
        e.ShapeError,
        r"c_attn/b.*found \(191,\), expected .*=192",
    ),
    "N04 shape one more than the data": (
        lambda: resized(lambda shape, data: ((shape[0] + 1,), data)),
        None,
        e.CorruptError,
        "found .*expected",
    ),
    "N04 data one more than the shape": (
        lambda: resized(lambda shape, data: (shape, data + bytes(4))),
        None,
        e.CorruptError,
        "found .*expected",
    ),
    "N05 neither true nor false": (lambda: field(NEOX, 28, 2), "gptneox", e.OutOfRangeError, "found"),
    "N06 alibi is NaN": (lambda: field(MPT, 24, float("nan")), "mpt", e.OutOfRangeError, "found"),
    "N06 alibi is negative": (lambda: field(MPT, 24, -1.0), "mpt", e.OutOfRangeError, "found"),
    "N06 alibi is infinite": (lambda: field(MPT, 24, float("inf")), "mpt", e.OutOfRangeError, "found"),
    "N06 clip is NaN": (lambda: field(MPT, 28, float("nan")), "mpt", e.OutOfRangeError, r"clip_qkv: found nan.*1e\+30"),
    "N06 clip is negative": (lambda: field(MPT, 28, -1.0), "mpt", e.OutOfRangeError, r"clip_qkv: found -1\.0"),
    "N06 clip is infinite": (lambda: field(MPT, 28, float("inf")), "mpt", e.OutOfRangeError, "clip_qkv: found inf"),
    "N07 RWKV under LLaMA's version": (lambda: field(RWKV, 4, 1), None, e.CorruptError, "found"),
    "N07 LLaMA under RWKV's version": (
        lambda: SMALL.bytes()[:4] + struct.pack("<i", 100) + SMALL.bytes()[8:],
        None,
        e.CorruptError,
        "found",
    ),
    "N07 version 102": (lambda: field(RWKV, 4, 102), None, e.OutOfRangeError, "found 102, expected 1 or 100 or 101"),
    "N08 a row more than there are": (lambda: field(WHISPER, 48, 81), None, e.CorruptError, "found"),
    "N08 no rows": (lambda: field(WHISPER, 48, 0), "whisper", e.OutOfRangeError, "rows of mel_filters: found 0"),
    "N08 2^31-1 columns": (lambda: field(WHISPER, 52, 2**31 - 1), "whisper", e.OutOfRangeError, "columns of mel_"),
    "N08 other rows than the header says": (lambda: filters(79, 201), None, e.CorruptError, "79"),
    "N08 the header says other rows": (lambda: field(WHISPER, 40, 128), None, e.ShapeError, "n_mels=128"),
    "N09 version 9": (lambda: field(FALCON, 4, 9), None, e.OutOfRangeError, "ggcc version.*found 9, expected 10"),
    "N09 version 11": (lambda: field(FALCON, 4, 11), None, e.OutOfRangeError, "ggcc version.*found 11, expected 10"),
    "N09 one merge too many": (lambda: field(FALCON, 36, 256), None, e.InconsistentError, "found 255, expected 256"),
    "N09 under the older magic": (lambda: b"lmgg" + legacy(FALCON)[8:], None, e.CorruptError, "found"),
}


@pytest.mark.parametrize("case", N_LIST)
def test_families_beside_llama_are_refused(case: str, tmp_path: Path) -> None:
    """Refused by everything a user may ask of the file, and nothing is written.

    Of the families that share a magic the layout that came furthest into the file speaks, which may be another
    family's: the error once did not say so, and "length of token 1: found 160357" stood for a wrong count of tokens.
    """
    make, arch, kind, words = N_LIST[case]
    path = tmp_path / "bad.bin"
    path.write_bytes(make())
    with pytest.raises(kind, match=words) as caught, ggferry.open_model(path, arch=arch) as model:
        list(model.tensors)
    assert caught.value.path == os.fspath(path) and "\n" not in str(caught.value)
    tracemalloc.start()
    try:
        with pytest.raises(kind):
            ggferry.convert(path, tmp_path / "out.gguf", arch=arch, no_vocab=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY and os.listdir(tmp_path) == ["bad.bin"]


@pytest.mark.parametrize("case", ["N05 a header without the field", "N05 the field is false", "N05 the field is true"])
def test_parallel_branches_of_gptneox(case: str, tmp_path: Path) -> None:
    """Headers before 20 May 2023 lack the field, and their runtimes knew parallel branches only: that is told."""
    data, absent = legacy(NEOX), "without" in case
    stated = int("false" not in case)
    changed = data[:28] + data[32:] if absent else data[:28] + struct.pack("<i", stated) + data[32:]
    (tmp_path / "m.bin").write_bytes(changed)
    plan = ggferry.plan(tmp_path / "m.bin", no_vocab=True)
    assert plan.keys["gptneox.use_parallel_residual"].value is bool(stated)
    assert any(one.name == "parallel_residual" for one in plan.assumed) is absent


def packed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ONE = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}


@pytest.mark.parametrize("case", ["T04 a space", "T04 every blank of JSON", "T04 a thousand"])
def test_leading_whitespace_of_safetensors(case: str, tmp_path: Path) -> None:
    """The format says that a header begins with a brace, and the library takes blanks: read, and told."""
    blanks = {"T04 a space": b" ", "T04 every blank of JSON": b" \t\r\n", "T04 a thousand": b" " * 1000}[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(packed(blanks + json.dumps(ONE).encode(), b"\7"))
    found = ggferry.inspect(path)
    assert any("whitespace" in note for note in found.notes) and found.tensors["a"].shape == (1,)


@pytest.mark.parametrize("case", ["T04 a byte order mark", "T04 a blank that is not JSON's", "T04 nothing but blanks"])
def test_other_things_before_the_brace(case: str, tmp_path: Path) -> None:
    text = json.dumps(ONE).encode()
    heads = {"T04 a byte order mark": b"\xef\xbb\xbf" + text, "T04 a blank that is not JSON's": b"\x0c" + text}
    path = tmp_path / "m.safetensors"
    path.write_bytes(packed(heads.get(case, b" " * 8), b"\7"))
    with pytest.raises(e.EncodingError) as caught:
        ggferry.inspect(path)
    assert caught.value.path == os.fspath(path)


@pytest.mark.parametrize(("case", "stated"), [("T21 a byte less", 0), ("T21 negative", -1), ("T21 2^64", 2**64)])
def test_a_wrong_total_size(case: str, stated: int, tmp_path: Path) -> None:
    """Nothing is reserved by it: the sizes of the shards count, and the difference is told."""
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(packed(ONE, b"\7"))
    index = {"metadata": {"total_size": stated}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = ggferry.inspect(tmp_path)
    assert any(f"total_size {stated}" in note for note in found.notes) and found.tensors["a"].bytes == 1


# --- PyTorch -------------------------------------------------------------------------------------------------------

MATRIX = torch.arange(12.0).reshape(3, 4)
GOOD = {"a": MATRIX}


def saved(value: Any, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def stream(change: Callable[[bytes], bytes] = bytes) -> bytes:
    """A checkpoint in the form from before 1.6, changed."""
    data = saved(GOOD, zipped=False)
    changed = change(data)
    assert change is bytes or changed != data
    return changed


def tar(form: int) -> bytes:
    """A checkpoint in the form of 2016: four members of a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return buffer.getvalue()


def trained() -> Any:
    """The state of an optimizer that has made a step."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


NEWER = "torch.save"
P_LIST: dict[str, tuple[Callable[[], bytes], type[e.GgferryError], str]] = {
    "P01 empty": (lambda: b"", e.TruncatedError, "found 0 bytes"),
    "P01 a web page": (lambda: b"<!DOCTYPE html><html></html>", e.UnknownFormatError, "HTML"),
    "P01 a pointer of git-LFS": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        e.UnknownFormatError,
        "git-LFS",
    ),
    "P01 a 7-Zip archive": (lambda: b"7z\xbc\xaf\x27\x1c" + bytes(99), e.UnknownFormatError, "7-Zip"),
    "P15 arguments of a training": (
        lambda: saved({**GOOD, "args": argparse.Namespace(x=1)}),
        e.UnsafePickleError,
        r"argparse\.Namespace",
    ),
    "P15 a scalar of numpy": (
        lambda: saved({**GOOD, "loss": np.float64(3)}),
        e.UnsafePickleError,
        r"numpy.*scalar",
    ),
    "P15 a function": (lambda: saved({**GOOD, "f": print}), e.UnsafePickleError, r"print.*nothing was run"),
    "P15 a path": (lambda: saved({**GOOD, "p": Path("x")}), e.UnsafePickleError, r"pathlib.*nothing was run"),
    "P18 ustar": (lambda: tar(tarfile.USTAR_FORMAT), e.UnsupportedError, "tar format of 2016"),
    "P18 GNU": (lambda: tar(tarfile.GNU_FORMAT), e.UnsupportedError, "tar format of 2016"),
    "P18 pax": (lambda: tar(tarfile.PAX_FORMAT), e.UnsupportedError, "tar format of 2016"),
    "P19 sound": (stream, e.UnsupportedError, NEWER),
    "P19 another magic number": (
        lambda: stream(lambda data: data.replace(b"\x6c\xfc\x9c\x46", b"\x6c\xfc\x9c\x47", 1)),
        e.UnsafePickleError,
        "bare pickle",
    ),
    "P19 another protocol": (
        lambda: stream(lambda data: data.replace(b"M\xe9\x03", b"M\xea\x03", 1)),
        e.UnsupportedError,
        NEWER,
    ),
    "P19 storage cut": (lambda: stream(lambda data: data[:-3]), e.UnsupportedError, NEWER),
    "P19 pickle cut": (lambda: stream(lambda data: data[:30]), e.UnsupportedError, NEWER),
    "P23 a whole module": (lambda: saved(torch.nn.Linear(2, 2)), e.UnsafePickleError, r"Linear.*state_dict\(\)"),
    "P23 an optimizer": (lambda: saved(trained()), e.UnsupportedError, "an optimizer's state"),
    "P23 a list": (lambda: saved([MATRIX]), e.UnsupportedError, "found a list"),
    "P23 one tensor": (lambda: saved(MATRIX), e.UnsupportedError, "found one tensor"),
    "P23 numbers": (lambda: saved({"a": 1}), e.UnsupportedError, "has no tensors"),
}


@pytest.mark.parametrize("case", P_LIST)
def test_checkpoints_of_pytorch_are_refused(case: str, tmp_path: Path) -> None:
    make, kind, words = P_LIST[case]
    path = tmp_path / "bad.pth"
    path.write_bytes(make())
    with pytest.raises(kind, match=words) as caught:
        ggferry.inspect(path)
    assert caught.value.path == os.fspath(path) and "\n" not in str(caught.value)
    with pytest.raises(kind):
        ggferry.convert(path, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["bad.pth"]


@pytest.mark.parametrize("case", ["P21 turned", "P21 a part", "P21 tied", "P21 every other column", "P21 expanded"])
def test_views_of_one_storage_are_read(case: str, tmp_path: Path) -> None:
    """Not contiguous, or of one storage: the values are torch's, and names of the same bytes are told."""
    views = {
        "P21 turned": MATRIX.t(),
        "P21 a part": MATRIX[1:, 1:3],
        "P21 tied": MATRIX,
        "P21 every other column": MATRIX[:, ::2],
        "P21 expanded": MATRIX[:1].expand(5, 4),
    }
    path = tmp_path / "good.pth"
    path.write_bytes(saved({"plain": MATRIX, "view": views[case]}))
    reader, _ = find_reader(os.fspath(path))
    held = reader.open(os.fspath(path), ())
    try:
        for name, value in {"plain": MATRIX, "view": views[case]}.items():
            assert np.array_equal(values(held, name), value.numpy())
        assert any("plain = view" in note for note in held.notes) is (case == "P21 tied")
    finally:
        held.close()


def values(held: Any, name: str) -> np.ndarray:
    from ggferry.formats.tensor_read import read_rows

    ref = held.tensors[name]
    return read_rows(held, ref, 0, ref.rows).view("<f4").reshape(ref.shape)


# --- Meta's folders ------------------------------------------------------------------------------------------------

META: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[type[e.GgferryError], str]]] = {
    "P24 twice the width": ({"dim": 64}, (0,), (e.NotFoundError, "2 parts would fit")),
    "P24 a layer too many": ({"n_layers": 3}, (0,), (e.MissingError, "2 blocks, expected 3")),
    "P24 other heads of keys": ({"n_kv_heads": 2}, (0,), (e.ShapeError, "wk.weight")),
    "P24 the first part missing": ({}, (1,), (e.NotFoundError, r"consolidated\.00\.pth")),
    "P24 a part between missing": ({}, (0, 2), (e.NotFoundError, r"consolidated\.01\.pth")),
    # Once both copies became a model of twice the heads' width: params.json states no size of the vocabulary here.
    "P24 a part too many": ({}, (0, 1), (e.InconsistentError, "of 2 part.*found 64, expected 32")),
}


@pytest.mark.parametrize("case", META)
def test_parts_of_meta_that_disagree(case: str, tmp_path: Path) -> None:
    stated, parts, (kind, words) = META[case]
    folder = tmp_path / "model"
    folder.mkdir()
    shape = Llama(n_vocab=64, n_embd=32, n_head=4, n_head_kv=4, n_layer=2, n_ff=64)
    tensors = {name: torch.ones(size).half() for name, size in shape.tensors()}
    for number_of_part in parts:
        torch.save(tensors, folder / f"consolidated.{number_of_part:02}.pth")
    params = {"dim": 32, "n_heads": 4, "n_layers": 2, "norm_eps": 1e-5, "vocab_size": -1, "multiple_of": 32, **stated}
    (folder / "params.json").write_text(json.dumps(params))
    with pytest.raises(kind, match=words) as caught:
        ggferry.convert(folder, tmp_path / "out.gguf", no_vocab=True)
    assert caught.value.path and Path(caught.value.path).is_relative_to(folder) and os.listdir(tmp_path) == ["model"]
