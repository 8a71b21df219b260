"""Encoders against ggml's, type by type: GB of float32 a second on one thread and on two, compile and start times.

    python benchmarks/quantize.py [--types q4_k,q6_k] [--mib 64] [--rounds 3] [--threads 1,2] [--library FILE]

The peer is `ggml_quantize_chunk`, which llama-quantize calls, of the prebuilt library in the PyPI package xllamacpp, or
of `--library`: benchmarks/README.md says how to build one. Both sides encode the same rows in the same process, and
their bytes are compared. The whole road from a checkpoint to Q4_K_M is `hf.py --outtypes q4_k_m`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ggferry.quant.codec import Codec, codecs

COLUMNS = 4096
SLOWEST = 0.05
"""Share of the rows that types get whose reference takes a minute for all of them."""
SEARCHED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
PLAIN = ("Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0")
"""Types whose functions in ggml do not look at an importance matrix."""

Rows = np.ndarray
Encode = Callable[[Rows, "Rows | None"], Rows]

START = """
import sys, time
began = time.process_time()
import numpy as np
numpy = time.process_time()
from ggferry.quant.codec import codec
weights = np.ones(256, np.float32) if sys.argv[2] == "True" else None
codec(sys.argv[1]).encode(np.ones((1, 256), np.float32), weights)
print(time.process_time() - numpy)
"""


class Peer:
    """ggml, called through ctypes; it lets go of the interpreter meanwhile."""

    def __init__(self, library: Path | None) -> None:
        path = library or self._prebuilt()
        self.call = ctypes.CDLL(str(path)).ggml_quantize_chunk
        self.call.restype = ctypes.c_size_t
        self.call.argtypes = [ctypes.c_int, *2 * [ctypes.c_void_p], *3 * [ctypes.c_int64], ctypes.c_void_p]
        self.name = path.name

    @staticmethod
    def _prebuilt() -> Path:
        package = importlib.util.find_spec("xllamacpp")
        if package is None or not package.submodule_search_locations:
            raise SystemExit("no peer: pip install xllamacpp, or --library libggml-base.so")
        return next(Path(package.submodule_search_locations[0]).glob("xllamacpp*.so"))

    def encoder(self, kind: Codec) -> Encode:
        def encode(values: Rows, weights: Rows | None) -> Rows:
            out = np.empty((len(values), kind.type.row_bytes(values.shape[1])), np.uint8)
            important = None if weights is None else weights.ctypes.data
            self.call(kind.type.ggml_id, values.ctypes.data, out.ctypes.data, 0, *values.shape, important)
            return out

        return encode


@dataclass(frozen=True, slots=True)
class Speed:
    """GB of float32 a second: by the processor time of one thread, and by wall time where there are more."""

    threads: int
    rate: float


def timed(encode: Encode, values: Rows, weights: Rows | None, threads: int, rounds: int) -> Speed:
    """The best of `rounds`. One thread is timed by its processor time, which a busy machine disturbs least."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    cuts = [len(values) * n // threads for n in range(threads + 1)]
    runs = [values[a:b] for a, b in pairwise(cuts)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            start = clock()
            if threads == 1:
                encode(values, weights)
            else:
                list(pool.map(lambda run: encode(run, weights), runs))
            best = min(best, clock() - start)
    return Speed(threads, values.nbytes / best / 1e9)


def started(name: str, weighted: bool, cache: str) -> float:
    """Processor seconds until a fresh interpreter that has numpy has encoded its first block."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    words = [sys.executable, "-c", START, name, str(weighted)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def ways(kind: Codec) -> Iterator[bool]:
    """Without an importance matrix, and with one."""
    if not kind.needs_imatrix:
        yield False
    if kind.type.name not in PLAIN:
        yield True


def report(kind: Codec, weighted: bool, values: Rows, peer: Peer, arguments: argparse.Namespace) -> None:
    name = kind.type.name
    weights = np.square(values[0]) + np.float32(1e-6) if weighted else None
    ours, theirs = kind.encode, peer.encoder(kind)
    assert ours is not None
    few = max(2, int(len(values) * SLOWEST)) if name in SEARCHED else len(values)
    equal = np.array_equal(ours(values[:few], weights), theirs(values[:few], weights))
    line = f"{name:<8}{'imatrix' if weighted else '':<9}"
    for threads in arguments.threads:
        mine = timed(ours, values, weights, threads, arguments.rounds)
        other = timed(theirs, values[:few], weights, threads, arguments.rounds)
        line += f"{other.rate:9.4f} {mine.rate:9.4f} {mine.rate / other.rate:6.1f} ×  "
    if arguments.start:
        with tempfile.TemporaryDirectory(prefix="ggferry-bench-") as cache:
            cold, warm = (started(name, weighted, cache) for _ in range(2))
        line += f"{cold:6.1f} s {warm:6.2f} s"
    print(line + ("" if equal else "   BYTES DIFFER"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", help="names separated by commas (default: all)")
    parser.add_argument("--mib", type=int, default=64, help="float32 MiB that are encoded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--library", type=Path, help="a shared library with ggml_quantize_chunk")
    parser.add_argument("--start", action="store_true", help="also the first use and a warm start, in new interpreters")
    arguments = parser.parse_args()
    known = {name: kind for name, kind in codecs().items() if kind.encode and kind.type.quantized}
    asked = arguments.types.upper().split(",") if arguments.types else list(known)
    if unknown := set(asked) - set(known):
        parser.error(f"no encoder for {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    peer = Peer(arguments.library)
    rows = max(2, (arguments.mib << 20) // (4 * COLUMNS))
    values = np.random.default_rng(0).standard_normal((rows, COLUMNS), np.float32) * np.float32(0.02)
    print(f"{values.nbytes >> 20} MiB of float32, {os.cpu_count()} CPUs, best of {arguments.rounds}, peer {peer.name}")
    titles = "".join(f"{n} thread{'s' * (n > 1)}: ggml, ours, ratio".center(30) for n in arguments.threads)
    print(f"{'GB/s':<17}{titles}{'first use, warm start' if arguments.start else ''}")
    for name in asked:
        for weighted in ways(known[name]):
            report(known[name], weighted, values, peer, arguments)
    print(f"peak RSS of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
