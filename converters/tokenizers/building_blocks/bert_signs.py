"""What tokenizers takes for accents, for punctuation and for control characters, which no Python's tables say.

Its tables are of an older Unicode, and stay so, while those of Python grow with its versions: a mark that came later is
no accent there. The ranges are `bert_signs.txt`, made by tools/bert_signs.py.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bert_signs.txt")


@cache
def pattern_of(kind: str) -> Any:
    """Return a pattern of one character of a kind: 'mark', 'control' or 'punctuation'."""
    with open(TABLE, encoding="ascii") as file:
        lines = {name: ranges.split() for name, _, ranges in (line.partition(" ") for line in file)}
    ends = ([int(end, 16) for end in found.split("-")] for found in lines[kind])
    return re.compile("[" + "".join(f"\\U{pair[0]:08x}-\\U{pair[-1]:08x}" for pair in ends) + "]")
