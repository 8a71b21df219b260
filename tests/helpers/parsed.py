"""Syntax trees of the product's modules, each made once in a process, for the laws that read all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a module; callers only read it."""
    return ast.parse(path.read_text(encoding="utf-8"))
