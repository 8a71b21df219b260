"""What is expected is loaded in the background, and left when the program fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ggferry.quant import kernels
from ggferry.quant.codec import codec


def test_what_has_not_begun_is_left() -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go.wait(10)
        done.append("first")

    kernels.forget_expected()
    kernels._in_background(first)
    kernels._in_background(lambda: done.append("second"))
    assert begun.wait(10)
    kernels.forget_expected()
    kernels._in_background(lambda: done.append("third"))
    go.set()
    kernels._pool.shutdown() if kernels._pool is not None else None
    kernels.forget_expected()
    assert "second" not in done and "third" in done


@pytest.mark.parametrize("weighted", [False, True])
def test_a_rehearsal_compiles_what_a_conversion_calls(weighted: bool) -> None:
    """The same signature: what follows compiles nothing."""
    encoder = kernels.Encoder("ggferry.quant.kernels.simple", "encode_q5_1")
    encoder._rehearse(codec("Q5_1").type.elements, weighted)
    from ggferry.quant.kernels import simple

    run = simple.q5_1_weighted if weighted else simple.q5_1
    known = list(run.signatures)
    encoder(np.ones((9, 256), np.float32), np.ones(256, np.float32) if weighted else None)
    assert len(known) == 1 and list(run.signatures) == known


def test_a_rehearsal_that_fails_is_silent() -> None:
    kernels.Encoder("ggferry.quant.kernels.of_nobody", "encode")._rehearse(32, False)
