"""The YAML front matter of a model card, as far as model cards use YAML.

Read are block mappings and sequences, flow sequences of scalars, plain, quoted and block scalars, comments. Every
scalar stays text: `version: 1.10` is not 1.1 and the language `no` is not false. Whatever else YAML has (anchors, tags,
flow mappings, complex keys, texts quoted over several lines …) leaves its top-level key out, with a note that names
the line: nothing is guessed. Source: YAML 1.2 chapters 6–8; held against PyYAML in the tests.
"""

from __future__ import annotations

import re
from typing import Any

from ggferry.formats.errors import NotFoundError

MAX_CARD = 1 << 20  # bytes; the longest front matters (evaluation results of hundreds of tasks) are below 300 kB
_MAX_DEPTH = 8  # model-index, the deepest thing in cards, has 6
_MAX_NOTES = 20
_NULLS = {"", "~", "null", "Null", "NULL"}
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_COLON = re.compile(r":(?=[ \t]|$)")
_COMMENT = re.compile(r"(?:^|[ \t])#")


def read_card(path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Front matter of the README.md at `path`, and notes on what could not be read. Raises NotFoundError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CARD + 1)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    if not data.removeprefix(b"\xef\xbb\xbf").startswith(b"---"):
        return {}, ()
    end = re.search(rb"\n(?:---|\.\.\.)[ \t]*\r?(?:\n|$)", data)
    if end is None:
        where = f"within {MAX_CARD} bytes" if len(data) > MAX_CARD else "before the end"
        return {}, (f"the front matter of README.md does not close {where}; it was not read",)
    try:
        text = data[: end.end()].decode("utf-8-sig")
    except UnicodeDecodeError:
        return {}, ("the front matter of README.md is not UTF-8; it was not read",)
    return front_matter(text)


def front_matter(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The mapping between the first line, `---`, and the next `---` or `...`; ({}, ()) for a text without one.

    Values are str, None, lists and dicts of them. The second item names what was left out and why.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    if lines[0].rstrip() != "---":
        return {}, ()
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() in {"---", "..."}), None)
    if end is None:
        return {}, ("the front matter of README.md does not close before the end; it was not read",)
    return _Block(lines[1:end]).top()


class _Unread(Exception):
    """This construct is outside the subset."""


class _Block:
    """A cursor over lines; line numbers in notes count the opening `---`."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.notes: list[str] = []
        self.unread = 0
        self.indents = []
        for number, line in enumerate(lines):
            body = line.lstrip(" \t")
            if "\t" in line[: len(line) - len(body)]:  # forbidden, but cards have it; every editor's second guess is 2
                line = lines[number] = line[: len(line) - len(body)].replace("\t", "  ") + body
            self.indents.append(len(line) - len(body))

    def top(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        found: dict[str, Any] = {}
        while self._peek() is not None:
            start = self.at
            key = self.lines[start].strip(" \t")
            try:
                if self.indents[start]:
                    raise _Unread("indented")
                key, rest = self._key(self.lines[start].rstrip(" \t"))
                value = self._value(rest, 0, 0)
                if key in found:
                    raise _Unread("a second time")
                found[key] = value
            except _Unread as reason:
                self.unread += 1
                if self.unread <= _MAX_NOTES:
                    self.notes.append(f"README.md line {start + 2}: {key[:40]!r} was not read: {reason}")
                self.at = max(self.at, start + 1)
                while self._peek() is not None and (self.indents[self.at] or self.lines[self.at].startswith("-")):
                    self.at += 1
        if self.unread > _MAX_NOTES:
            self.notes.append(f"README.md: {self.unread - _MAX_NOTES} more were not read")
        return found, tuple(self.notes)

    def _peek(self) -> int | None:
        """Indentation of the next line that is neither blank nor comment; None at the end."""
        while self.at < len(self.lines):
            body = self.lines[self.at].strip(" \t")
            if body and not body.startswith("#"):
                return self.indents[self.at]
            self.at += 1
        return None

    def _node(self, indent: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _Unread(f"nested deeper than {_MAX_DEPTH} levels")
        body = self.lines[self.at][indent:]
        return self._sequence(indent, depth) if _is_item(body) else self._mapping(indent, depth)

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() == indent and not _is_item(self.lines[self.at][indent:]):
            key, rest = self._key(self.lines[self.at][indent:].rstrip(" \t"))
            if key in found:
                raise _Unread(f"{key[:40]!r} in it a second time")
            found[key] = self._value(rest, indent, depth)
        self._closed(indent)
        return found

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        found = []
        while self._peek() == indent and _is_item(self.lines[self.at][indent:]):
            body = self.lines[self.at][indent + 1 :].rstrip(" \t")
            rest = body.lstrip(" \t")
            if _is_item(rest) or _has_key(rest):  # a collection that starts on the dash's line
                column = indent + 1 + len(body) - len(rest)
                self.lines[self.at] = " " * column + rest
                self.indents[self.at] = column
                found.append(self._node(column, depth + 1))
            else:
                found.append(self._value(rest, indent, depth, item=True))
        self._closed(indent)
        return found

    def _closed(self, indent: int) -> None:
        if (self._peek() or 0) > indent:
            raise _Unread(f"line {self.at + 2} is indented like nothing above it")

    def _key(self, body: str) -> tuple[str, str]:
        """`key: rest` taken apart."""
        if body[:1] in {'"', "'"}:
            key, rest = _quoted(body)
            match = re.match(r"[ \t]*:(?=[ \t]|$)", rest)
            if match is None:
                raise _Unread("no key")
            return key, rest[match.end() :].lstrip(" \t")
        match = _COLON.search(body)
        if match is None or not _has_key(body):
            raise _Unread("no key")
        return body[: match.start()].rstrip(" \t"), body[match.end() :].lstrip(" \t")

    def _value(self, rest: str, indent: int, depth: int, *, item: bool = False) -> Any:
        """The value whose first line, from after the key or dash on, is `rest`; the cursor stands on that line."""
        self.at += 1
        if not rest or rest.startswith("#"):
            below = self._peek()
            if below is None or below < indent:
                return None
            if below == indent:
                return self._node(below, depth + 1) if not item and _is_item(self.lines[self.at][below:]) else None
            if not (_is_item(self.lines[self.at][below:]) or _has_key(self.lines[self.at][below:].rstrip(" \t"))):
                return self._plain("", indent)
            return self._node(below, depth + 1)
        if rest[0] in "|>":
            return self._block_scalar(rest, indent)
        if rest[0] == "[":
            return self._flow(rest, indent)
        if rest[0] in "\"'":
            text, after = _quoted(rest)
            self._end(after, indent)
            return text
        if re.fullmatch(r"\{[ \t]*\}(?:[ \t]+#.*)?", rest):
            return {}
        return self._plain(rest, indent)

    def _plain(self, first: str, indent: int) -> str | None:
        """An unquoted text and the deeper lines that continue it: one line break folds into a space, n into n - 1."""
        text, breaks, commented = _uncomment(first), 0, _COMMENT.search(first) is not None
        pieces = [text]
        while self.at < len(self.lines):
            line = self.lines[self.at].strip(" \t")
            if line and (self.indents[self.at] <= indent or line[0] == "#" or commented):
                break
            self.at += 1
            breaks += 1
            if line:
                pieces += ["\n" * (breaks - 1) or (" " if pieces[-1] else ""), _uncomment(line)]
                breaks, commented = 0, _COMMENT.search(line) is not None
        if (self._peek() or 0) > indent:
            raise _Unread("a comment within a text")
        text = "".join(pieces)
        if text[:1] in set("&*!%@`[]{},|>\"'#") or re.match(r"[-?:](?=[ \t]|$)", text):
            raise _Unread(f"starts with {text[0]!r}")
        if any(_COLON.search(piece) for piece in pieces):
            raise _Unread("a colon and a space within an unquoted text")
        return None if text in _NULLS else text

    def _block_scalar(self, head: str, indent: int) -> str:
        match = re.fullmatch(r"([|>])([+-]?)(?:[ \t]+#.*)?", head)
        if match is None:
            raise _Unread(f"block text with indicator {head[:10]!r}")
        start = self.at
        while self.at < len(self.lines) and (self.indents[self.at] > indent or not self.lines[self.at].strip(" \t")):
            self.at += 1
        lines = [line if line.strip(" \t") else "" for line in self.lines[start : self.at]]
        while lines and not lines[-1]:
            lines.pop()
        column = next((self.indents[start + n] for n, line in enumerate(lines) if line), 0)
        if any(line and self.indents[start + n] < column for n, line in enumerate(lines)):
            raise _Unread("block text with a line further out than its first")
        text = "\n".join(line[column:] for line in lines)
        if match[1] == ">":
            if any(line[column : column + 1] in {" ", "\t"} for line in lines):
                raise _Unread("folded text with indented lines")
            text = re.sub(r"(?<=[^\n])\n(?=[^\n])", " ", text)
            text = re.sub(r"(?<=[^\n])\n(\n+)", r"\1", text)
        kept = self.at - start - len(lines) if match[2] == "+" else 0
        return text + "\n" * (kept + (1 if text and match[2] != "-" else 0))

    def _flow(self, rest: str, indent: int) -> list[str | None]:
        """`[a, "b", c]`, over several lines too."""
        found: list[str | None] = []
        rest = rest[1:]
        wanted = True  # an item, or the end
        while True:
            rest = rest.lstrip(" \t")
            while not rest or rest[0] == "#":
                rest = self.lines[self.at].strip(" \t") if self.at < len(self.lines) else "-"
                if rest and rest[0] != "]" and (rest == "-" or self.indents[self.at] <= indent):
                    raise _Unread("'[' without ']'")
                self.at += 1
            if rest[0] == "]":
                self._end(rest[1:], indent)
                return found
            if rest[0] == ",":
                if wanted:
                    raise _Unread("an empty item in […]")
                wanted, rest = True, rest[1:]
                continue
            if not wanted:
                raise _Unread("items in […] without a comma between them")
            if rest[0] in "\"'":
                text, rest = _quoted(rest)
                found.append(text)
            else:
                match = re.match(r"[^,\[\]{}\"'&*!|>%@`#?][^,\[\]{}]*", rest)
                if match is None or _COMMENT.search(match[0]) or re.match(r"[-:](?=[ \t]|$)|---|\.\.\.", match[0]):
                    raise _Unread(f"{rest[:10]!r} in […]")
                if re.search(r":(?=[ \t]|$)", match[0]) or rest[match.end() : match.end() + 1] in set("[{}"):
                    raise _Unread(f"{rest[:10]!r} in […]")
                text = match[0].rstrip(" \t")
                rest = rest[match.end() :]
                found.append(None if text in _NULLS else text)
            wanted = False

    def _end(self, after: str, indent: int) -> None:
        """Nothing but a comment may follow a quoted text or a flow sequence."""
        if after.strip(" \t") and not re.match(r"[ \t]+#", after):
            raise _Unread("text behind its end")
        if (self._peek() or 0) > indent:
            raise _Unread("lines behind its end")


def _is_item(body: str) -> bool:
    return body[:1] == "-" and body[1:2] in {"", " ", "\t"}


def _has_key(body: str) -> bool:
    """Whether a line starts a mapping: a plain or quoted key, a colon, and a space or nothing."""
    if body[:1] in {'"', "'"}:
        try:
            return re.match(r"[ \t]*:(?=[ \t]|$)", _quoted(body)[1]) is not None
        except _Unread:
            return False
    match = _COLON.search(body)
    if match is None or re.match(r"[-?:](?=[ \t]|$)|[\[\]{}&*!|>%@`#,]", body):
        return False
    return _COMMENT.search(body, 0, match.start()) is None


def _uncomment(text: str) -> str:
    match = _COMMENT.search(text)
    return (text if match is None else text[: match.start()]).rstrip(" \t")


def _quoted(text: str) -> tuple[str, str]:
    """The text of the quoted scalar that `text` starts with, and what follows it."""
    if text[0] == "'":
        match = re.match(r"'((?:[^']|'')*)'", text)
        if match is None:
            raise _Unread("a text quoted over several lines")
        return match[1].replace("''", "'"), text[match.end() :]
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        raise _Unread("a text quoted over several lines")
    plain = re.sub(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", _unescape, match[1])
    return plain, text[match.end() :]


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        if match[4] not in _ESCAPES:
            raise _Unread(f"the escape {match[0]!r}")
        return _ESCAPES[match[4]]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _Unread(f"the escape {match[0]!r}")
    return chr(code)
