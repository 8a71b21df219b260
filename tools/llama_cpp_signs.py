"""Make building_blocks/unassigned_signs.txt of converters/tokenizers: what has no category in llama.cpp's tables.

Run: python tools/llama_cpp_signs.py FOLDER BUILD > that file, where FOLDER holds llama.cpp's sources.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

UNDEFINED = 1
PAIR = re.compile(r"\{\s*(0x[0-9A-Fa-f]+),\s*(0x[0-9A-Fa-f]+)\s*\}")
LAST = 0x110000


def ranges(source: str) -> list[str]:
    """Return the ranges of code points without a category, in hexadecimal, of the text of src/unicode-data.cpp."""
    begin = source.index("unicode_ranges_flags")
    table = [
        (int(first, 16), int(flags, 16)) for first, flags in PAIR.findall(source[begin : source.index("};", begin)])
    ]
    ends = [first for first, _ in table[1:]] + [LAST]
    without = [(first, end - 1) for (first, flags), end in zip(table, ends, strict=True) if flags in (0, UNDEFINED)]
    return [f"{first:x}" if first == last else f"{first:x}-{last:x}" for first, last in without if first < LAST]


def main(folder: str, build: str) -> None:
    """Print the table."""
    source = (Path(folder) / "src" / "unicode-data.cpp").read_text(encoding="utf-8")
    print(f"# tools/llama_cpp_signs.py, llama.cpp {build}")
    print("unassigned", *ranges(source))


if __name__ == "__main__":
    main(*sys.argv[1:])
