"""One meaning of a size, wherever one is given."""

from __future__ import annotations

import pytest

from ggferry.support.sizes import parse_size

# International System of Units for K, M, G, T; IEC 80000-13 for Ki, Mi, Gi, Ti.
SI, IEC = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}, {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@pytest.mark.parametrize(("unit", "factor"), [*SI.items(), *IEC.items()])
def test_units(unit: str, factor: int) -> None:
    assert parse_size(f"3{unit}B") == parse_size(f" 3 {unit.lower()}b ") == 3 * factor
    if unit in SI:
        assert parse_size(f"3{unit}") == parse_size(f"3{unit.lower()}") == 3 * factor


def test_fractions_and_plain_numbers() -> None:
    assert parse_size("1.5G") == 1_500_000_000 and parse_size("0.5KiB") == 512
    assert parse_size("0") == 0 and parse_size("4096") == 4096


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "1e9", "1.5", "0.1KiB", "4X", "4 G B", "4GG", "４G", "10000000T", "9" * 30, "1_000", "4Ki"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="powers of 1000"):
        parse_size(text)
