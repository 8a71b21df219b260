"""What has no category in llama.cpp's tables, which are of Unicode 15: neither letter nor number nor symbol.

The ranges are `unassigned_signs.txt`, made by tools/llama_cpp_signs.py.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unassigned_signs.txt")
NO_CATEGORY = "\ufdd0"
"""A code point that no version of Unicode will give a meaning."""


@cache
def unassigned() -> Any:
    """Return a pattern of one such character."""
    with open(TABLE, encoding="ascii") as file:
        ranges = file.read().splitlines()[1].split()[1:]
    ends = ([int(end, 16) for end in found.split("-")] for found in ranges)
    return re.compile("[" + "".join(f"\\U{pair[0]:08x}-\\U{pair[-1]:08x}" for pair in ends) + "]")
