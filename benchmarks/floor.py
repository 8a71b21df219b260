"""The floor of a conversion: what nobody who reads the source, encodes it and leaves the outputs on the disk can avoid.

It is measured in the run in which the conversion is: a copy that reads the source once and writes and flushes as many
bytes as the outputs have, and their encoders alone, from memory, on all cores. Where the two overlap without a loss, a
conversion takes the longer of the two, and the processor time of both.

    python benchmarks/floor.py OUTPUT.gguf ...      # the encoders of these files: seconds and bytes, as JSON
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measured import Cost, best, measure

SOURCE_TYPE = "BF16"
"""The type of the checkpoint: tensors that keep it are copied."""
POOL = 32 << 20
"""Bytes of values that are encoded over and over: more than the caches hold."""
# In one thread, as `cp` does, and in pieces of the size that costs the kernel least (formats/gguf/write.py).
COPY = """
import os, sys
source, size, *targets = sys.argv[1:]
view = memoryview(bytearray(256 << 10))
files = [open(name, "wb", buffering=0) for name in targets]
left = [int(each) for each in size.split(",")]
with open(source, "rb", buffering=0) as file:
    total = os.fstat(file.fileno()).st_size
    read = 0
    while count := file.readinto(view):
        read += count
        for at, target in enumerate(files):
            due = left[at] if read == total else min(left[at], count)
            while due:
                wrote = target.write(view[:due])
                due, left[at] = due - wrote, left[at] - wrote
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """What a conversion's parts cost by themselves.

    Attributes:
        copy: Reading the source once, writing and flushing as many bytes as the outputs have.
        encoders: The encoders of the outputs' tensors, from memory.
    """

    copy: Cost
    encoders: Cost

    @property
    def wall(self) -> float:
        """Seconds of the longer part."""
        return max(self.copy.wall, self.encoders.wall)

    @property
    def processor(self) -> float:
        """Processor seconds of both."""
        return self.copy.processor + self.encoders.processor

    def __str__(self) -> str:
        return (
            f"{self.wall:8.2f} s wall: copy and fsync {self.copy.wall:.2f} s ({self.copy.processor:.2f} s CPU), "
            f"encoders {self.encoders.wall:.2f} s ({self.encoders.processor:.2f} s CPU)"
        )

    def under(self, cost: Cost) -> str:
        """How many times the floor a cost is."""
        return f"{cost.wall / self.wall:.2f} × the floor, {cost.processor / self.processor:.2f} × its processor time"


def floor_of(source: Path, outputs: Sequence[Path], rounds: int) -> Floor:
    """The floor of a conversion of one file to outputs that exist; the copies take their names with `.copy` behind."""
    copies = [output.with_name(output.name + ".copy") for output in outputs]
    sizes = ",".join(str(output.stat().st_size) for output in outputs)
    try:
        command = (sys.executable, "-S", "-c", COPY, source, sizes, *copies)
        copied = best([measure(copies, *command) for _ in range(rounds)])
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)
    return Floor(copied, best([_encoders(outputs) for _ in range(rounds)]))


def _encoders(outputs: Sequence[Path]) -> Cost:
    """The cost of the encoders in a process of its own, without its start."""
    words = [sys.executable, __file__, *map(str, outputs)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(*json.loads(done.stdout))


def encoded(outputs: Iterable[Path]) -> dict[tuple[str, str], tuple[int, int]]:
    """What is encoded for GGUF files: rows and columns by name and type. Two files share a tensor of one type."""
    from ggferry.formats.readers.gguf import open_gguf

    found = {}
    for output in outputs:
        checkpoint = open_gguf(str(output))
        for name, ref in checkpoint.tensors.items():
            if ref.type.name != SOURCE_TYPE:
                found[name, ref.type.name] = (math.prod(ref.shape[:-1]), ref.shape[-1])
        checkpoint.close()
    return found


def pieces(shapes: dict[tuple[str, str], tuple[int, int]], most: int) -> Iterator[tuple[str, int, int]]:
    """Cut what is encoded: type, rows and columns of pieces of at most `most` bytes of float32, or of one row."""
    for (_, kind), (rows, columns) in shapes.items():
        step = max(1, most // (4 * columns))
        yield from ((kind, min(step, rows - start), columns) for start in range(0, rows, step))


def encode_all(outputs: Sequence[Path]) -> Cost:
    """Encode as many rows as these files have, in their types, on all cores."""
    import numpy as np

    from ggferry.converters.model_graph.rows import CHUNK
    from ggferry.quant.codec import codec
    from ggferry.support.threads import each, workers

    noise = np.random.default_rng(0).standard_normal(POOL // 4, np.float32) * np.float32(0.02)
    values = (noise.view(np.uint32) & 0xFFFF0000).view(np.float32)  # what bf16 holds, as in the checkpoint
    work = list(pieces(encoded(outputs), CHUNK))
    starts = (np.arange(len(work)) * CHUNK // 4) % (values.size - CHUNK // 4)

    def encode(item: tuple[int, tuple[str, int, int]]) -> None:
        number, (kind, rows, columns) = item
        start = min(int(starts[number]), values.size - rows * columns)
        run = codec(kind).encode
        assert run is not None
        run(values[start : start + rows * columns].reshape(rows, columns), None)

    for kind, _, columns in {piece[0]: piece for piece in work}.values():
        if (rounding := codec(kind).rounding) is not None:
            rounding.load()
        encode((0, (kind, 1, columns)))  # loads the kernel
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    each(enumerate(work), encode, workers())
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Cost(wall, user, system, after.ru_maxrss * 1024)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    spent = encode_all([Path(name) for name in sys.argv[1:]])
    print(json.dumps([spent.wall, spent.user, spent.system, spent.peak]))
