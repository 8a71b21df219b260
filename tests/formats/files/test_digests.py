"""Digests taken beside other work: the right ones, in the order asked for, and none that outlives an error."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.formats.files.digests import Digests, digest
from ggferry.formats.files.sources import LocalFile


class Watched(LocalFile):
    """Says when it is read, and how often."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reading, self.reads = threading.Event(), 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads += 1
        self.reading.set()
        super().read_into(offset, buffer)


class Remote:
    """The same, elsewhere."""

    def __init__(self, path: Path) -> None:
        self._file = Watched(path)
        self.path, self.size, self.reading = "s3://models/x.bin", self._file.size, self._file.reading
        self.read, self.read_into, self.close = self._file.read, self._file.read_into, self._file.close


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("size", [0, 1, (8 << 20) + 3])
def test_records_are_those_of_the_files(size: int, beside: int, threads: int, tmp_path: Path) -> None:
    data = [os.urandom(size) for _ in range(3)]
    for number, each in enumerate(data):
        (tmp_path / f"{number}.bin").write_bytes(each)
    sources = [LocalFile(tmp_path / f"{number}.bin") for number in range(3)]
    expected = [
        {"name": f"{number}.bin", "bytes": size, "blake3": blake3(each).hexdigest()} for number, each in enumerate(data)
    ]
    with Digests(threads) as digests:
        assert [take() for take in digests.begin(sources, beside)] == expected
    assert digest(sources[0]) == expected[0]["blake3"]


def test_leaving_ends_a_digest_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    source = Watched(path)
    with pytest.raises(RuntimeError, match="the conversion failed"), Digests(2) as digests:
        digests.begin([source], beside=1)
        assert source.reading.wait(10)
        raise RuntimeError("the conversion failed")
    assert source.reads * (8 << 20) < 1 << 40


@pytest.mark.parametrize(("kind", "threads", "beside"), [(Watched, 2, True), (Watched, 1, False), (Remote, 2, False)])
def test_only_local_files_are_read_beside_work_and_only_with_a_thread_to_spare(
    kind: type, threads: int, beside: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"x")
    source = kind(path)
    with Digests(threads) as digests:
        (take,) = digests.begin([source], beside=1)
        assert source.reading.wait(10 if beside else 0.2) == beside
        assert take()["blake3"] == blake3(b"x").hexdigest()
