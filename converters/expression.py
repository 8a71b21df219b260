"""Sizes written as text: 'n_head * head_dim', evaluated over the hparams, or solved for the one that is unknown."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=512)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def evaluate(expression: str | int, sizes: Mapping[str, int]) -> int:
    """The value of `expression` (+ - * / // over integers and names; / must divide).

    Raises KeyError naming a size that is not known, ValueError where a division leaves a rest.
    """
    if isinstance(expression, int):
        return expression
    return _value(_parse(expression), sizes)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return int(sizes[name])
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, sizes), _value(right, sizes)
            match op:
                case ast.Mult():
                    return a * b
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.FloorDiv() if b:
                    return a // b
                case ast.Div() if b and a % b == 0:
                    return a // b
                case ast.Div():
                    raise ValueError(f"{ast.unparse(node)} = {a} / {b} is not whole")
    raise ValueError(f"not a size expression: {ast.unparse(node)}")


def solve(expression: str, value: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """(name, its value) when `expression` = `value` leaves exactly one unknown that appears once, else None.

    Raises ValueError when no whole number solves it.
    """
    node = _parse(expression)
    while True:
        match node:
            case ast.Name(id=name):
                return None if name in sizes else (name, value)
            case ast.BinOp(left=left, op=op, right=right):
                left_known, right_known = _known(left, sizes), _known(right, sizes)
                if left_known == right_known:
                    return None
                other = _value(left if left_known else right, sizes)
                node = right if left_known else left
                value = _undo(op, value, other, left_known, expression)
            case _:
                return None


def _known(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    return all(leaf.id in sizes for leaf in ast.walk(node) if isinstance(leaf, ast.Name))


def _undo(op: ast.operator, value: int, other: int, other_is_left: bool, expression: str) -> int:
    match op:
        case ast.Mult() if other and value % other == 0:
            return value // other
        case ast.Add():
            return value - other
        case ast.Sub():
            return other - value if other_is_left else value + other
        case ast.Div() if not other_is_left:
            return value * other
    raise ValueError(f"no whole number makes {expression} equal {value}")


def holds(condition: str, sizes: Mapping[str, int]) -> bool:
    """Whether a comparison of expressions is true ('n_head_kv < n_head', 'a != b and c == 256'). False when a name in
    it has no value; an empty condition always holds."""
    return not condition or _truth(_parse(condition), sizes)


def _truth(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(part, sizes) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            try:
                a, b = _value(left, sizes), _value(right, sizes)
            except (KeyError, ValueError):
                return False
            return {ast.Lt: a < b, ast.NotEq: a != b, ast.Eq: a == b}[type(op)]
    raise ValueError(f"not a condition: {ast.unparse(node)}")
