"""whisper.cpp itself, as pywhispercpp's wheel carries it, in a process of its own: it aborts where it is wrong."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = r"""
import ctypes, glob, os, sys
import numpy as np
import _pywhispercpp
from pywhispercpp.model import Model

path, recording, tokens, out = sys.argv[1:]
samples = np.load(recording)
ids = [int(token) for token in tokens.split(",")]
model = Model(path, redirect_whispercpp_logs_to=None, n_threads=1, print_progress=False, single_segment=True,
              temperature_inc=0.0, max_tokens=8)
texts = [segment.text for segment in model.transcribe(samples)]

beside = os.path.join(os.path.dirname(_pywhispercpp.__file__), "pywhispercpp.libs", "libwhisper-*.so*")
lib = ctypes.CDLL(glob.glob(beside)[0])
lib.whisper_init_from_file.restype = ctypes.c_void_p
lib.whisper_get_logits.restype = ctypes.POINTER(ctypes.c_float)
lib.whisper_n_vocab.argtypes = lib.whisper_get_logits.argtypes = [ctypes.c_void_p]
lib.whisper_pcm_to_mel.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int, ctypes.c_int]
lib.whisper_encode.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
lib.whisper_decode.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), *[ctypes.c_int] * 3]
context = lib.whisper_init_from_file(path.encode())
wave = (ctypes.c_float * len(samples))(*samples)
prompt = (ctypes.c_int * len(ids))(*ids)
assert lib.whisper_pcm_to_mel(context, wave, len(samples), 1) == 0
assert lib.whisper_encode(context, 0, 1) == 0
assert lib.whisper_decode(context, prompt, len(ids), 0, 1) == 0
rows = lib.whisper_n_vocab(context)
logits = np.ctypeslib.as_array(lib.whisper_get_logits(context), (len(ids) * rows,))[-rows:].copy()
names = [_pywhispercpp.whisper_token_to_bytes(model._ctx, token) for token in range(rows)]
np.savez(out, logits=logits, texts=np.array([text.encode("utf-8", "surrogateescape") for text in texts]),
         names=np.array([bytes(name) + b"." for name in names]))
"""


def library(name: str) -> ctypes.CDLL:
    """One of the libraries that the wheel carries."""
    import pywhispercpp

    folder = Path(pywhispercpp.__file__).parent.parent / "pywhispercpp.libs"
    return ctypes.CDLL(str(next(folder.glob(f"lib{name}-*.so*"))))


def run_whisper_cpp(model: Path | str, samples: np.ndarray, tokens: list[int], folder: Path) -> dict[str, np.ndarray]:
    """Let it transcribe a recording; return the text, the logits behind `tokens`, and the bytes of every token.

    Bytes of tokens are followed by a point, as numpy drops zeros at the end.
    """
    np.save(folder / "samples.npy", samples)
    out = folder / f"{Path(model).name}.npz"
    prompt = ",".join(map(str, tokens))
    argv = [sys.executable, "-c", PROGRAM, str(model), str(folder / "samples.npy"), prompt, str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as found:
        return dict(found)
