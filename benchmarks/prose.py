"""Texts that are no documentation of software: the quotations, jokes and poems of Debian's package `fortunes`.

apt-get download fortunes && dpkg-deb -x fortunes_*.deb fortunes    # their folder: fortunes/usr/share/games/fortunes
"""

from __future__ import annotations

import random
from pathlib import Path

LETTERS = 120_000


def prose(folder: Path) -> tuple[str, str]:
    """Return two texts that share no entry, of the entries of all files, in an order from a fixed seed."""
    files = [each for each in sorted(folder.iterdir()) if each.is_file() and not each.suffix]
    entries = [entry.strip() for each in files for entry in each.read_text(encoding="utf-8").split("\n%\n")]
    random.Random(7).shuffle(entries)
    return "\n\n".join(entries[::2])[:LETTERS], "\n\n".join(entries[1::2])[:LETTERS]
