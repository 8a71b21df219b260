"""What llama.cpp itself makes of a picture or a spectrum with a second file: its clip, through xllamacpp's library.

The functions are C++ ones that the library exports (tools/mtmd/clip.h of the release it is built from), and the
structures below are theirs. An assertion of ggml ends the process, so that they are called in one of their own.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

INIT = "_Z9clip_initPKc19clip_context_params"
TOKENS = "_Z20clip_n_output_tokensPK8clip_ctxPK14clip_image_f32"
WIDTH = "_Z18clip_n_mmproj_embdPK8clip_ctx"
ENCODE = "_Z23clip_image_batch_encodeP8clip_ctxiPK20clip_image_f32_batchRSt6vectorIfSaIfEE"


class Parameters(ctypes.Structure):
    _fields_ = [
        ("use_gpu", ctypes.c_bool),
        ("device", ctypes.c_void_p),
        ("flash", ctypes.c_int),
        ("min_tokens", ctypes.c_int),
        ("max_tokens", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("callback", ctypes.c_void_p),
        ("callback_data", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
        ("progress", ctypes.c_void_p),
        ("progress_data", ctypes.c_void_p),
    ]


class Loaded(ctypes.Structure):
    _fields_ = [("eye", ctypes.c_void_p), ("ear", ctypes.c_void_p), ("voice", ctypes.c_void_p)]


class Vector(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p)]


class Input(ctypes.Structure):
    _fields_ = [
        ("separated", ctypes.c_bool),
        ("newline", ctypes.c_bool),
        ("padded", ctypes.c_int32),
        ("grid", ctypes.c_int * 2),
        ("original", ctypes.c_int * 2),
        ("values", Vector),
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
    ]


class Batch(ctypes.Structure):
    _fields_ = [("inputs", Vector), ("is_sound", ctypes.c_bool)]


def embedded(
    path: Path | str,
    *,
    picture: Any = None,
    spectrum: Any = None,
    whole: bool = False,
    grid: tuple[int, int] = (0, 0),
    size: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """The rows that llama.cpp makes of a picture `(3, height, width)` or a spectrum `(channels, frames)`, float32.

    Args:
        path: The mmproj file.
        picture: A picture, or a stack of a picture as a whole and, below it, its tiles.
        spectrum: A spectrum.
        whole: The picture is no tile of a larger one, which some towers end with a row of its own.
        grid: Columns and rows of tiles of a stack.
        size: Width and height of the picture that a stack was made of.
    """
    given, kind = (spectrum, "spectrum") if picture is None else (picture, "whole picture" if whole else "picture")
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/in.npy", np.asarray(given, np.float32))
        words = [sys.executable, __file__, str(path), kind, f"{folder}/in.npy", f"{folder}/out.npy"]
        words += [str(number) for number in (*grid, *size)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        rows: np.ndarray = np.load(f"{folder}/out.npy")
        return rows


def vector(values: Any) -> Vector:
    """A std::vector over memory that is held elsewhere."""
    start = ctypes.addressof(values) if isinstance(values, ctypes.Structure) else values.ctypes.data
    end = start + (ctypes.sizeof(values) if isinstance(values, ctypes.Structure) else values.nbytes)
    return Vector(start, end, end)


def _library() -> Any:
    import xllamacpp

    (path,) = Path(xllamacpp.__file__).parent.glob("*.so")
    return ctypes.CDLL(str(path))


def _rows(path: str, kind: str, given: np.ndarray, tiles: list[int]) -> np.ndarray:
    library, wide = _library(), kind.endswith("picture")
    start = library[INIT]
    start.restype, start.argtypes = Loaded, [ctypes.c_char_p, Parameters]
    loaded = start(path.encode(), Parameters(flash=0, min_tokens=-1, max_tokens=-1))
    model = ctypes.c_void_p(loaded.eye if wide else loaded.ear)
    assert model, "llama.cpp does not load it"
    values = np.ascontiguousarray(given.transpose(1, 2, 0) if wide else given)
    one = Input(
        separated=kind.startswith("whole"),
        grid=(ctypes.c_int * 2)(*tiles[:2]),
        original=(ctypes.c_int * 2)(*tiles[2:]),
        values=vector(values),
        width=given.shape[-1],
        height=given.shape[-2],
    )
    rows = np.zeros((library[TOKENS](model, ctypes.byref(one)), library[WIDTH](model)), np.float32)
    out, batch = vector(rows), Batch(vector(one), not wide)
    library[ENCODE].restype = ctypes.c_bool
    assert library[ENCODE](model, 1, ctypes.byref(batch), ctypes.byref(out)), "llama.cpp does not compute it"
    assert out.begin == rows.ctypes.data and out.end == rows.ctypes.data + rows.nbytes, "another number of rows"
    return rows


if __name__ == "__main__":
    np.save(sys.argv[4], _rows(sys.argv[1], sys.argv[2], np.load(sys.argv[3]), [int(n) for n in sys.argv[5:]]))
