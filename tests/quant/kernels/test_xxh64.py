"""XXH64: the values of the xxhash package, for every way of cutting the bytes."""

from __future__ import annotations

import pytest

from ggferry.quant.kernels.xxh64 import XXH64

KNOWN = {
    0: "ef46db3751d8e999",
    1: "a96c7f0ce858bbb7",
    33: "62c9fd21ed857664",
    100: "efa0ad2d3e70c151",
    1000: "99594f4828043d35",
    100003: "c333c0bff6f9efdb",
}
"""Length → what xxhash 3 says of bytes (31 i + 7) mod 256."""


@pytest.mark.parametrize("length", KNOWN)
@pytest.mark.parametrize("step", [1, 7, 32, 45, 1 << 20])
def test_known_values(length: int, step: int) -> None:
    data = bytes((31 * i + 7) % 256 for i in range(length))
    sums = XXH64()
    for at in range(0, length, step):
        sums.update(data[at : at + step])
    assert sums.hexdigest() == KNOWN[length]
