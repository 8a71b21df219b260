"""llama.cpp's C interface, as the library inside xllamacpp exports it: for models that its server does not run.

Run as a program in a process of its own, which an assertion of llama.cpp may end: PATH, the tokens to encode and the
tokens to decode (none: an encoder alone), both JSON, and the .npy for logits or states. With a .npy of rows of a
picture besides, the first tokens are decoded before the rows, the second ones behind them.

Its parameter structures change with every version: they are passed whole and unread, in room enough, as their
defaults. That works where they are the last argument (System V: what is passed in memory begins at one place).
"""

from __future__ import annotations

import ctypes as c
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

LOADS, STATES = "--loads", "--states"


class Params(c.Structure):
    """llama_model_params or llama_context_params, with room to spare."""

    _fields_ = [("bytes", c.c_char * 2048)]


class Batch(c.Structure):
    """llama_batch: positions and sequences are left to llama.cpp."""

    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.c_void_p),
        ("embd", c.c_void_p),
        ("pos", c.c_void_p),
        ("n_seq_id", c.c_void_p),
        ("seq_id", c.c_void_p),
        ("logits", c.c_void_p),
    ]


class Llama:
    """One model, and its context from `begin` on."""

    def __init__(self, path: str) -> None:
        import xllamacpp

        self.lib = c.CDLL(str(Path(xllamacpp.__file__).parent / "xllamacpp.abi3.so"))
        self.call("llama_backend_init", None)
        model_params = self.call("llama_model_default_params", Params)
        self.model = self.call("llama_model_load_from_file", c.c_void_p, path.encode(), model_params)
        assert self.model, "not loaded"

    def begin(self) -> None:
        context_params = self.call("llama_context_default_params", Params)
        self.context = c.c_void_p(
            self.call("llama_init_from_model", c.c_void_p, c.c_void_p(self.model), context_params)
        )

    def call(self, name: str, result: type | None, *arguments: object) -> object:
        function = getattr(self.lib, name)
        function.restype = result
        return function(*arguments)

    def run(self, name: str, tokens: Sequence[int]) -> None:
        """llama_encode or llama_decode, every token with a result."""
        ids, wanted = (c.c_int32 * len(tokens))(*tokens), (c.c_int8 * len(tokens))(*[1] * len(tokens))
        batch = Batch(len(tokens), c.cast(ids, c.c_void_p), logits=c.cast(wanted, c.c_void_p))
        assert self.call(name, c.c_int32, self.context, batch) == 0, name

    def read(self, rows: np.ndarray) -> None:
        """llama_decode of rows that stand for a picture, float32 `(n, width)`."""
        wanted = (c.c_int8 * len(rows))(*[1] * len(rows))
        batch = Batch(len(rows), None, c.c_void_p(rows.ctypes.data), logits=c.cast(wanted, c.c_void_p))
        assert self.call("llama_decode", c.c_int32, self.context, batch) == 0, "rows"

    def rows(self, name: str, count: int, width: int) -> np.ndarray:
        found = (self.call(name, c.POINTER(c.c_float), self.context, c.c_int32(i)) for i in range(count))
        return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in found])


def encoded_and_decoded(
    path: str, encode: Sequence[int], decode: Sequence[int], folder: Path, rows: np.ndarray | None = None
) -> np.ndarray:
    """Logits of the decoder at each token of `decode`; states of the encoder where there is none to decode. A model
    without an encoder is given nothing to encode. With `rows` of a picture, `encode` is decoded before them."""
    target = str(folder / "llama.npy")
    command = [sys.executable, __file__, path, json.dumps(list(encode)), json.dumps(list(decode)), target]
    if rows is not None:
        np.save(folder / "rows.npy", np.ascontiguousarray(rows, np.float32))
        command.append(str(folder / "rows.npy"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(target)


def states(path: str, tokens: Sequence[int], folder: Path) -> np.ndarray:
    """States that a model without logits gives for each token, as wide as the model says."""
    target = str(folder / "states.npy")
    command = [sys.executable, __file__, STATES, path, json.dumps(list(tokens)), target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(target)


def loads(*paths: Path) -> list[bool]:
    """Whether llama.cpp loads each of the files; by one process that may not crash."""
    command = [sys.executable, __file__, LOADS, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line in ("LOADED", "REFUSED")]
    assert len(lines) == len(paths), f"{paths[len(lines)].name}: {done.stderr[-2000:]}"
    return [line == "LOADED" for line in lines]


def _load(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            llama = Llama(path)
            llama.call("llama_model_free", None, c.c_void_p(llama.model))
            print("LOADED", flush=True)
        except AssertionError:
            print("REFUSED", flush=True)


def _states(path: str, tokens: str, target: str) -> None:
    llama, ids = Llama(path), json.loads(tokens)
    llama.begin()
    llama.call("llama_set_embeddings", None, llama.context, c.c_bool(True))
    llama.run("llama_decode", ids)
    width = llama.call("llama_model_n_embd_out", c.c_int32, c.c_void_p(llama.model))
    np.save(target, llama.rows("llama_get_embeddings_ith", len(ids), width))


def main(path: str, encode: str, decode: str, target: str, picture: str = "") -> None:
    llama, first, second = Llama(path), json.loads(encode), json.loads(decode)
    llama.begin()
    if not second:
        llama.call("llama_set_embeddings", None, llama.context, c.c_bool(True))
    if first:
        llama.run("llama_decode" if picture else "llama_encode", first)
    if picture:
        llama.read(np.load(picture))
    if second:
        llama.run("llama_decode", second)
        vocabulary = llama.call("llama_model_get_vocab", c.c_void_p, c.c_void_p(llama.model))
        width = llama.call("llama_vocab_n_tokens", c.c_int32, c.c_void_p(vocabulary))
        np.save(target, llama.rows("llama_get_logits_ith", len(second), width))
    else:
        width = llama.call("llama_model_n_embd", c.c_int32, c.c_void_p(llama.model))
        np.save(target, llama.rows("llama_get_embeddings_ith", len(first), width))


if __name__ == "__main__":
    {LOADS: lambda *paths: _load(paths), STATES: _states}.get(sys.argv[1], lambda *rest: main(sys.argv[1], *rest))(
        *sys.argv[2:]
    )
