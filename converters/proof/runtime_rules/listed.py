"""Which architectures llama.cpp asserts something of: `llama_cpp_asserts.txt`, made by tools/llama_cpp_asserts.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

LIST = "llama_cpp_asserts.txt"


@cache
def asserts() -> Mapping[str, tuple[str, ...]]:
    """Return what ends a load or a first token, by architecture: 'loader TEXT' or 'graph TEXT' each."""
    found: dict[str, list[str]] = {}
    own: list[str] = []
    for line in (files("ggferry.converters.proof") / LIST).read_text(encoding="utf-8").splitlines():
        if head := re.match(r"\[(.*)\] [0-9a-f]{16}$", line):
            own = found.setdefault(head[1], [])
        elif line.startswith(("loader ", "graph ")):
            own.append(line)
    return {name: tuple(lines) for name, lines in found.items()}


def asserting(pattern: str) -> str:
    """Return the architectures that have a line which the pattern matches, separated by blanks."""
    return " ".join(name for name, lines in asserts().items() if any(re.fullmatch(pattern, line) for line in lines))
