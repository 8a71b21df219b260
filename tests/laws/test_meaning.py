"""No decision is read from words that are written for people."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

WORDS = {"message", "why", "reason", "origin", "hint", "words", "line", "lines", "notes"}
"""Attributes, keys and variables that hold sentences."""
READS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "replace",
    "split",
    "find",
}
FILES = [
    path for room in ("support", "quant", "formats", "converters", "service") for path in (ROOT / room).rglob("*.py")
]
ALLOWED = {
    "converters/model_graph/hparam_sources.py": "found not in param.words",  # words of a configuration → values
}


def is_sentence(node: ast.expr) -> bool:
    """Whether an expression is a message: an attribute or a key of that name, or an error as text."""
    match node:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return name in WORDS
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name), *_]):
            return name in WORDS
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="error" | "failure" | "trouble")]):
            return True
    return False


def readings(path: Path) -> list[str]:
    """What in a module looks into a sentence, or compares one."""
    found = []
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                looks = any(isinstance(op, ast.In | ast.NotIn) for op in ops) and any(map(is_sentence, others))
                equals = any(isinstance(op, ast.Eq | ast.NotEq) for op in ops) and any(
                    map(is_sentence, (left, *others))
                )
                if looks or equals:
                    found.append(ast.unparse(node))
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in READS and is_sentence(value):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reads_sentences(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert [each for each in readings(path) if each != ALLOWED.get(name)] == []


def test_the_law_sees_what_it_is_for(tmp_path: Path) -> None:
    """The readings that were there once."""
    module = tmp_path / "module.py"
    module.write_text(
        "a = RAGGED in step.why\nb = 'default' in param.origin\nc = row['message'] == BUSY\n"
        "d = str(error).partition(': ')\ne = param['origin'].removeprefix('default: ')\nf = x.get('reason') != y\n"
    )
    assert len(readings(module)) == 6
