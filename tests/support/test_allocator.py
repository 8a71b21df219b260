"""What a process gives back to the system."""

from __future__ import annotations

import os
import sys
import threading
import time
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import pytest

from ggferry.support import allocator
from ggferry.support.heavy import import_ahead

BLAS = "openblas"


def resident(library: str) -> tuple[int, int]:
    """How many KiB of a library's code are mapped, and in how many mappings it lies."""
    kib = count = 0
    inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            word = line.split()
            if "-" in word[0]:
                inside = word[1] == "r-xp" and library in line
                count += inside
            elif inside and word[0] == "Rss:":
                kib += int(word[1])
    return kib, count


@pytest.mark.unix("madvise")
def test_code_is_forgotten_and_comes_back_a_few_pages_at_a_time() -> None:
    x = np.random.default_rng(0).standard_normal((200, 200))
    product = x @ x
    places = [each for each in allocator._code() if each[1] - each[0] > 8 << 20]
    before, _ = resident(BLAS)
    allocator.forget_code()
    after, pieces = resident(BLAS)
    # A test before this one in the process may have forgotten code, of which only what was needed has come back.
    assert before > 2 * after and after < 200 and pieces > 10, "a thread of its own may have come back to some"
    assert (x @ x == product).all(), "the code that came back is another"
    allocator.forget_code()
    assert resident(BLAS)[1] == pieces and allocator._code() == places


def test_a_file_whose_name_is_no_text_may_be_mapped_beside_it(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\n r-xp"
    with open(path, "w+b") as file:
        file.write(b"x" * 4096)
        file.flush()
        with mmap(file.fileno(), 4096, access=ACCESS_READ) as mapped:
            allocator.forget_code()
            assert mapped[:1] == b"x" and allocator._code()


def test_something_is_done_while_a_library_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_slow_library.py").write_text("import time\ntime.sleep(0.35)\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[bool] = []
    import_ahead("a_slow_library", meanwhile=lambda: seen.append(True))
    while any("a_slow_library" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    assert "a_slow_library" in sys.modules and len(seen) >= 2
    import_ahead("a_library_that_is_nowhere", meanwhile=lambda: seen.append(False))
    while any("is_nowhere" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    assert seen[-1] is False
