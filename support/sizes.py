"""Sizes as people write them."""

from __future__ import annotations

import re

_UNITS: dict[str, int] = {"": 1} | {
    name + suffix: base**power
    for power, name in enumerate("KMGT", 1)
    for suffix, base in (("", 1000), ("B", 1000), ("iB", 1024))
}
FORM = "N, or N with K, M, G, T (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
MOST = 1 << 63
"""The largest int64; no file and no memory is as large."""

_BY_WORD = {name.lower(): factor for name, factor in _UNITS.items()}


def parse_size(text: str) -> int:
    """Return the bytes that `text` states: '4G' → 4·10⁹, '4GiB' → 4·2³⁰, '100' → 100; in any case, and '1.5G' too.

    Raises ValueError for what is not a whole number of bytes between 0 and 2⁶³ − 1.
    """
    match = re.fullmatch(r"([0-9]{1,19})(?:\.([0-9]{1,9}))? ?([A-Za-z]{0,3})", text.strip(), re.ASCII)
    factor = _BY_WORD.get(match[3].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(FORM)
    fraction = match[2] or ""
    size, rest = divmod(int(match[1] + fraction) * factor, int("1" + "0" * len(fraction)))
    if rest or size >= MOST:
        raise ValueError(FORM)
    return size
