"""Sizes and conditions written as text (the grammars: docs/tables.md).

A size, such as 'n_head * head_dim', is evaluated over the hparams, or solved for the one that is unknown. A condition
compares sizes: 'n < n_dense and gating == "sigmoid"'.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ggferry.support.places import BadWord


@lru_cache(maxsize=2048)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def evaluate(expression: str | int, sizes: Mapping[str, Any]) -> int:
    """Return the whole number that `expression` gives.

    It consists of names and numbers with + - * / // %, where / must divide without a rest; `int(…)` drops a fraction,
    so that 'int(head_dim * fraction)' is allowed. A tuple holds one size for each block, and means that of block `n`.

    Raises KeyError naming an unknown size, and ValueError where a division leaves a rest or the result is not whole.
    """
    if isinstance(expression, int):
        return expression
    node = _parse(expression)
    value = _named(node.id, sizes) if type(node) is ast.Name else _value(node, sizes)  # nearly all are a name alone
    if not isinstance(value, int):
        raise ValueError(f"{expression} = {value!r} is not a whole number")
    return int(value)


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return _named(name, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _combine(node, op, _value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return int(_number(inner, _value(inner, sizes)))
    raise ValueError(f"not a size expression: {ast.unparse(node)}")


def _named(name: str, sizes: Mapping[str, Any]) -> Any:
    """Return the size of that name; where every block has its own, that of block `n`."""
    value = sizes[name]
    if not isinstance(value, tuple) or "n" not in sizes:
        return value
    if not 0 <= sizes["n"] < len(value):
        raise ValueError(f"{name} says nothing of block {sizes['n']}")
    return value[sizes["n"]]


def _combine(node: ast.expr, op: ast.operator, left: Any, right: Any) -> Any:
    a, b = _number(node, left), _number(node, right)
    match op:
        case ast.Mult():
            return a * b
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.FloorDiv() if b:
            return a // b
        case ast.Mod() if b:
            return a % b
        case ast.Div() if b and a % b == 0:
            return a // b
        case ast.Div():
            raise ValueError(f"{ast.unparse(node)} = {a} / {b} is not whole")
    raise ValueError(f"not a size expression: {ast.unparse(node)}")


def _number(node: ast.expr, value: Any) -> Any:
    if not isinstance(value, int | float) or abs(value) == float("inf") or value != value:
        raise ValueError(f"{value!r} in {ast.unparse(node)} is not a number")
    return value


def solve(expression: str, value: int, sizes: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return (name, its value) where `expression` = `value` leaves exactly one unknown, which appears once; else None.

    Raises ValueError where no whole number solves it.
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


def _known(node: ast.expr, sizes: Mapping[str, Any]) -> bool:
    return all(name in sizes for name in _leaves(node))


@lru_cache(maxsize=4096)
def _leaves(node: ast.expr) -> tuple[str, ...]:
    return tuple(dict.fromkeys(leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)))


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
        case ast.Div() if value and other % value == 0:
            return other // value
    raise ValueError(f"no whole number makes {expression} equal {value}")


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def holds(condition: str, sizes: Mapping[str, Any]) -> bool:
    """Return whether a condition is true ('n_head_kv < n_head', 'a != b and c == 256').

    It counts as false where a name in it has no value and the rest does not decide it. An empty condition is true.
    """
    return verdict(condition, sizes) is True


def verdict(condition: str, sizes: Mapping[str, Any]) -> bool | None:
    """Return whether a condition is true, or None where a name in it has no value and the rest does not decide it."""
    return True if not condition else _truth(_parse(condition), sizes)


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in an expression or a condition, in order.

    The result is cached: every plan asks this of the same tables.
    """
    return _leaves(_parse(expression))


def _truth(node: ast.expr, sizes: Mapping[str, Any]) -> bool | None:
    match node:
        case ast.BoolOp(op=op, values=parts):
            found = [_truth(part, sizes) for part in parts]
            decisive = isinstance(op, ast.Or)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            try:
                a, b = _value(left, sizes), _value(right, sizes)
                return _COMPARISONS[type(op)](a, b)
            except (KeyError, ValueError, TypeError):
                return None
    raise ValueError(f"not a condition: {ast.unparse(node)}")


def check_size(text: str) -> None:
    """Raise BadWord where `text` is no size expression."""
    _check_size(_parsed(text))


def check_condition(text: str) -> None:
    """Raise BadWord where `text` is no condition; an empty one always holds."""
    if text:
        _check_condition(_parsed(text))


def _parsed(text: str) -> ast.expr:
    try:
        return _parse(text)
    except SyntaxError:
        raise BadWord("not an expression", text.strip()) from None


_OPERATORS = (ast.Mult, ast.Add, ast.Sub, ast.FloorDiv, ast.Mod, ast.Div)


def _check_size(node: ast.expr, words: tuple[type, ...] = (int,)) -> None:
    match node:
        case ast.Name():
            return None
        case ast.Constant(value=value) if isinstance(value, words) and not isinstance(value, bool):
            return None
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            return _check_size(inner, (int, float))
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            _check_size(left, words)
            return _check_size(right, words)
    raise BadWord("not a size expression", ast.unparse(node))


def _check_condition(node: ast.expr) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check_condition(part)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            for side in (left, right):
                _check_size(side, (int, float, str))
        case _:
            raise BadWord("not a condition", ast.unparse(node))
