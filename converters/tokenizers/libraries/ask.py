"""Ask a library about an untrusted tokenizer file, in a process with little memory and time.

The libraries are fast and made for files that are well meant: some files end their process, some patterns take forever
and some take all memory. So they never run in ours, and whatever becomes of the process, the caller gets one of our
errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

from ggferry.converters.tokenizers.building_blocks.special_tokens import well_formed
from ggferry.formats.errors import UnsupportedError
from ggferry.support.platform import here
from ggferry.support.printable import printable
from ggferry.support.records import dataclass

SECONDS = 10  # of CPU; a vocabulary of 262,144 tokens takes one
PER_TEXT = 2e-3  # of CPU, for each text beyond; real ones take 5e-6
MEMORY = 2 << 30  # a vocabulary of 262,144 tokens takes a quarter of it
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", *here.ENVIRONMENT)  # of the environment


@dataclass(frozen=True, slots=True)
class Answer:
    """What a library returned.

    Attributes:
        library: Its name and version.
        flat: The ids of all texts, one text after the other.
        ends: Where the ids of each text end in `flat`.
        normalized: The texts as its normalizer leaves them.
        facts: What `child.py` reports about the vocabulary.
    """

    library: str
    flat: array[int]
    ends: tuple[int, ...]
    normalized: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ends)

    def ids(self, number: int) -> list[int]:
        """Return the ids of text `number`."""
        start = self.ends[number - 1] if number else 0
        return self.flat[start : self.ends[number]].tolist()


def ask(
    library: str,
    data: bytes,
    texts: Sequence[str] = (),
    *,
    path: str | None,
    normalize: bool = False,
    vocabulary: bool = False,
) -> Answer:
    """Return the ids that `library` gives for `texts`.

    Args:
        library: Name of the library.
        data: The tokenizer file.
        texts: What to encode.
        path: The file's path, for errors.
        normalize: Whether to ask what its normalizer makes of the texts, too.
        vocabulary: Whether to ask for the vocabulary, too.

    Raises UnsupportedError where the library does not read the file, or not within its limits.
    """
    seconds = SECONDS + int(len(texts) * PER_TEXT)
    clean = [well_formed(text) for text in texts]
    question = {
        "library": library,
        "size": len(data),
        "texts": clean,
        "normalize": normalize,
        "vocabulary": vocabulary,
        "memory": MEMORY,
        "seconds": seconds,
        "path": [os.path.abspath(place) for place in sys.path if place],
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", PROGRAM],
            input=json.dumps(question).encode() + b"\n" + data,
            capture_output=True,
            timeout=8 * seconds,
            check=False,
            env={name: os.environ[name] for name in KEPT if name in os.environ},
        )
    except subprocess.TimeoutExpired:
        raise _too_much(library, path, f"≤ {seconds} seconds") from None
    if done.returncode:
        raise _failed(library, path, done.returncode, done.stderr, seconds)
    return _read(done.stdout, clean)


def _read(data: bytes, texts: Sequence[str]) -> Answer:
    line, _, numbers = data.partition(b"\n")
    answer, values = json.loads(line), array("I")
    values.frombytes(numbers)
    ends = tuple(accumulate(values[: len(texts)]))
    return Answer(answer.pop("library"), values[len(texts) :], ends, tuple(answer.pop("normalized", texts)), answer)


def _too_much(library: str, path: str | None, limit: str) -> UnsupportedError:
    return UnsupportedError(f"{library} did not finish in time with this tokenizer", path=path, expected=limit)


def _failed(library: str, path: str | None, code: int, stderr: bytes, seconds: int) -> UnsupportedError:
    if -code in here.OVER_TIME:
        return _too_much(library, path, f"≤ {seconds} seconds of CPU")
    words = stderr.decode("utf-8", "replace").strip()
    if "MemoryError" in words or "memory allocation" in words or "bad_alloc" in words:
        limit = f"≤ {MEMORY >> 20} MiB"
        return UnsupportedError(f"{library} ran out of memory with this tokenizer", path=path, expected=limit)
    if "without end" in words or "retry-limit" in words:
        return _too_much(library, path, "an end")
    words = printable(words.rpartition("\n")[2])
    return UnsupportedError(f"{library} does not read this tokenizer", path=path, found=words or f"signal {-code}")
