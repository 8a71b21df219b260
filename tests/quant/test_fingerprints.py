"""Marks tell whether rows are those that an encoder gave, and which of them are encoded again all the same."""

from __future__ import annotations

import numpy as np

from ggferry.quant.fingerprints import SAMPLE, Fingerprints


def test_every_piece_is_known_and_no_other() -> None:
    rows, piece = 50, 4
    blocks = np.random.default_rng(0).integers(0, 256, (rows, 34), np.uint8)
    marks = Fingerprints()
    for start, stop in ((16, 32), (0, 16), (32, rows)):  # whole pieces, but the last
        marks.put("a", rows, piece, start, blocks[start:stop])
    for start in range(0, rows, piece):
        mine = blocks[start : start + piece].copy()
        assert marks.hold("a", piece, start, mine)
        assert not marks.hold("b", piece, start, mine)
        mine[0, 33] ^= 1
        assert not marks.hold("a", piece, start, mine)
    assert not marks.hold("a", piece, 0, blocks[piece : 2 * piece])


def test_a_sample_is_encoded_again_and_what_has_no_mark() -> None:
    marks = Fingerprints()
    marks.put("a", 100, 2, 0, np.zeros((100, 1), np.uint8))
    sampled = [start for start in range(0, 100, 2) if marks.sampled("a", 2, start)]
    assert sampled == list(range(0, 100, 2 * SAMPLE))
    assert all(marks.sampled("b", 2, start) for start in range(0, 100, 2))
