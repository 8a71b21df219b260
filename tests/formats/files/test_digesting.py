"""A digest of what passes: right in whatever order a file is read; in order, it costs one reading."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.formats.errors import TruncatedError
from ggferry.formats.files import digesting as room
from ggferry.formats.files.digesting import DigestingSource, begin, digesting, record
from ggferry.formats.files.sources import LocalFile
from ggferry.support.threads import each

SIZE, PIECE = 3_000_001, 70_001
DATA = random.Random(1).randbytes(SIZE)


@pytest.fixture
def file(tmp_path: Path) -> DigestingSource:
    (tmp_path / "x.bin").write_bytes(DATA)
    (found,) = digesting([LocalFile(tmp_path / "x.bin")])
    assert isinstance(found, DigestingSource)
    return found


def pieces(start: int = 0) -> list[tuple[int, int]]:
    return [(at, min(PIECE, SIZE - at)) for at in range(start, SIZE, PIECE)]


def check(file: DigestingSource) -> None:
    assert record(file, 2) == {"name": "x.bin", "bytes": SIZE, "blake3": blake3(DATA).hexdigest()}
    assert file.read(5, 7) == DATA[5:12]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_in_order_nothing_is_read_again(file: DigestingSource, threads: int) -> None:
    begin([file])
    each(pieces(), lambda piece: check_read(file, *piece), threads)
    assert file.again == 0 if threads == 1 else file.again <= SIZE  # a thread that lost its turn leaves it to the next
    check(file)


def check_read(file: DigestingSource, offset: int, size: int) -> None:
    assert file.read(offset, size) == DATA[offset : offset + size]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_and_any_overlap_is_right(file: DigestingSource, threads: int, seed: int) -> None:
    order = random.Random(seed)
    asked = [(at := order.randrange(SIZE), order.randrange(SIZE - at + 1)) for _ in range(20)] + pieces()
    order.shuffle(asked)
    begin([file])
    each(asked, lambda piece: check_read(file, *piece), threads)
    check(file)


def test_what_nobody_reads_is_read_for_the_digest_alone(file: DigestingSource) -> None:
    begin([file])
    for offset, size in pieces(1000):
        if offset > 5 * PIECE:
            check_read(file, offset, size)
    assert file.again == 1000 + 5 * PIECE
    check(file)
    assert file.again == 1000 + 5 * PIECE


def test_a_long_gap_waits_for_the_end(file: DigestingSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "GAP", 1000)
    begin([file])
    check_read(file, 2000, 100)
    assert file.again == 0
    check(file)
    assert file.again == SIZE


def test_nothing_is_digested_before_it_is_asked_for(file: DigestingSource) -> None:
    check_read(file, 0, SIZE)
    check(file)
    assert file.again == SIZE


def test_an_error_ends_the_reading_and_nobody_waits_for_it(file: DigestingSource) -> None:
    class Broken(LocalFile):
        def read_into(self, offset: int, buffer: memoryview) -> None:
            if offset == PIECE:
                raise TruncatedError("gone", path=self.path)
            super().read_into(offset, buffer)

    broken = DigestingSource(Broken(file.path))
    begin([broken])
    with pytest.raises(TruncatedError):
        each(pieces(), lambda piece: check_read(broken, *piece), 4)


def test_a_stopped_record_covers_what_was_read(file: DigestingSource) -> None:
    assert file.record(1, lambda: True)["blake3"] == blake3(b"").hexdigest()
