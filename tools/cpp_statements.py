"""Read just enough C++ to follow what a function does: tokens, functions, classes, statements.

Not a compiler: preprocessor lines are dropped, templates are text. What does not fit the shapes below raises
ParseError; nothing is skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)+\''
    r"|[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*|\d[\w.]*(?:(?<=[eE])[+-]\d+f?)?"
    r"|->|\+\+|--|<=|>=|==|!=|&&|\|\||[-+*/%|&^]=|<<|::|\S"
)
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*")', re.DOTALL)
OPEN = {"(": ")", "[": "]", "{": "}"}

Tokens = list[str]


class ParseError(Exception):
    """A construct this reader does not know. The message holds its text."""


@dataclass(frozen=True, slots=True)
class Simple:
    """An expression, declaration, `return` or `throw`, without its semicolon."""

    tokens: Tokens

    @property
    def word(self) -> str:
        return self.tokens[0] if self.tokens else ""


@dataclass(frozen=True, slots=True)
class If:
    condition: Tokens
    then: list[Statement]
    other: list[Statement]


@dataclass(frozen=True, slots=True)
class Loop:
    """`for` or `while`: its header, its body. `switch` is one that may run no branch."""

    word: str
    header: Tokens
    body: list[Statement]


@dataclass(frozen=True, slots=True)
class Block:
    body: list[Statement]


@dataclass(frozen=True, slots=True)
class Lambda:
    name: str
    function: Function


Statement = Simple | If | Loop | Block | Lambda


@dataclass(frozen=True, slots=True)
class Function:
    """`parameters`: type, name and tokens of the default of each."""

    parameters: tuple[tuple[str, str, Tokens], ...]
    body: list[Statement] = field(repr=False)


def clean(text: str) -> str:
    """`text` without comments and preprocessor lines. A macro of several lines goes whole."""
    text = COMMENT.sub(lambda found: found.group(1) or " ", text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)


def tokenize(text: str) -> Tokens:
    return TOKEN.findall(clean(text))


def closing(tokens: Sequence[str], start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    stack = []
    for index in range(start, len(tokens)):
        token = tokens[index]
        if token in OPEN:
            stack.append(OPEN[token])
        elif stack and token == stack[-1]:
            stack.pop()
            if not stack:
                return index
    raise ParseError(f"unbalanced: {' '.join(tokens[start : start + 12])}")


def split(tokens: Sequence[str], separator: str) -> list[Tokens]:
    """`tokens` cut at each `separator` outside brackets."""
    parts: list[Tokens] = [[]]
    index = 0
    while index < len(tokens):
        if tokens[index] in OPEN:
            end = closing(tokens, index)
            parts[-1] += tokens[index : end + 1]
            index = end + 1
            continue
        if tokens[index] == separator:
            parts.append([])
        else:
            parts[-1].append(tokens[index])
        index += 1
    return parts if parts != [[]] else []


def statements(tokens: Sequence[str]) -> list[Statement]:
    """The statements of a body, braces removed."""
    found: list[Statement] = []
    index = 0
    while index < len(tokens):
        statement, index = _statement(tokens, index)
        if statement is not None:
            found.append(statement)
    return found


def _statement(tokens: Sequence[str], index: int) -> tuple[Statement | None, int]:
    token = tokens[index]
    if token == ";":
        return None, index + 1
    if token == "{":
        end = closing(tokens, index)
        return Block(statements(tokens[index + 1 : end])), end + 1
    if token == "if":
        return _if(tokens, index)
    if token in ("for", "while", "switch"):
        end = closing(tokens, index + 1)
        body, after = _body(tokens, end + 1)
        return Loop(token, list(tokens[index + 2 : end]), body), after
    if token in ("case", "default"):
        return None, tokens.index(":", index) + 1
    if token == "try":
        return _try(tokens, index)
    if token in ("do", "goto", "else", "catch"):
        raise ParseError(f"{token}: {' '.join(tokens[index : index + 12])}")
    end = index
    while tokens[end] != ";":
        end = closing(tokens, end) + 1 if tokens[end] in OPEN else end + 1
    return _simple(list(tokens[index:end])), end + 1


def _body(tokens: Sequence[str], index: int) -> tuple[list[Statement], int]:
    statement, after = _statement(tokens, index)
    if isinstance(statement, Block):
        return statement.body, after
    return [statement] if statement is not None else [], after


def _if(tokens: Sequence[str], index: int) -> tuple[Statement, int]:
    start = index + 2 if tokens[index + 1] == "constexpr" else index + 1
    end = closing(tokens, start)
    then, after = _body(tokens, end + 1)
    other: list[Statement] = []
    if after < len(tokens) and tokens[after] == "else":
        other, after = _body(tokens, after + 1)
    *first, condition = split(tokens[start + 1 : end], ";")  # if (init; condition)
    branch = If(condition, then, other)
    return (Block([*map(Simple, first), branch]) if first else branch), after


def _try(tokens: Sequence[str], index: int) -> tuple[Statement, int]:
    """One of both is what remains: the block, or its handler."""
    then, after = _body(tokens, index + 1)
    if tokens[after] != "catch":
        raise ParseError("try without catch")
    other, after = _body(tokens, closing(tokens, after + 1) + 1)
    return If(["try"], then, other), after


def _simple(tokens: Tokens) -> Statement:
    """`auto NAME = [&](…) { … }` is a lambda of that name; a lambda elsewhere is not understood."""
    if tokens[:1] == ["auto"] and tokens[2:4] == ["=", "["]:
        start = closing(tokens, 3) + 1
        end = closing(tokens, start)
        body = tokens.index("{", end)
        inner = statements(tokens[body + 1 : closing(tokens, body)])
        return Lambda(tokens[1], Function(parameters(tokens[start + 1 : end]), inner))
    return Simple(tokens)


def parameters(tokens: Sequence[str]) -> tuple[tuple[str, str, Tokens], ...]:
    found = []
    for part in split(tokens, ","):
        before, *default = split(part, "=")
        name = before[-1] if len(before) > 1 and re.match(r"[A-Za-z_]\w*$", before[-1]) else ""
        found.append((" ".join(before[:-1]), name, default[0] if default else []))
    return tuple(found)


def functions(text: str) -> Iterator[tuple[str, Callable[[], Function]]]:
    """Every function of a file that is defined at its outermost level: its name, and what reads it."""
    for name, tokens, start, end, body in _definitions(text):
        given, inner = tokens[start + 1 : end], tokens[body + 1 : closing(tokens, body)]
        yield name, lambda given=given, inner=inner: Function(parameters(given), statements(inner))  # type: ignore[misc]


def bodies(text: str, wanted: str) -> list[str]:
    """The text, as tokens with single blanks, of the functions defined under that name."""
    return [
        " ".join(tokens[start : closing(tokens, body) + 1])
        for name, tokens, start, _, body in _definitions(text)
        if name == wanted
    ]


def _definitions(text: str) -> Iterator[tuple[str, Tokens, int, int, int]]:
    tokens = tokenize(text)
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token == "namespace":  # its content is at the outermost level
            index = tokens.index("{", index) + 1
            continue
        if token == "(" and index and re.match(r"[A-Za-z_]", tokens[index - 1]):
            end = closing(tokens, index)
            body = end + 1
            while tokens[body : body + 1] in (["const"], ["noexcept"], ["override"]):
                body += 1
            if tokens[body : body + 1] == [":"]:  # a constructor's list of members
                body = next(i for i in range(body, len(tokens)) if tokens[i] == "{" and tokens[i - 1] in (")", "}"))
            if tokens[body : body + 1] == ["{"]:
                yield tokens[index - 1], tokens, index, end, body
                index = closing(tokens, body) + 1
                continue
            index = end + 1
            continue
        index = closing(tokens, index) + 1 if token == "{" else index + 1
