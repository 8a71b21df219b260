"""Walk JSON objects member by member without building them: tables of names can have millions of lines.

A caller asks for objects of strings pair by pair, and for other values up to a size. The text is checked as strictly as
by `parse_json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ggferry.formats.errors import CorruptError, EncodingError, InconsistentError, OutOfRangeError
from ggferry.formats.json_files.parse import BODY, SPACE, VALUE, is_text, parse_json, pattern

LOOK = 1 << 16  # bytes of a value that are read to say what is wrong with it

_OPEN = SPACE + rb"\{" + SPACE
_KEY = SPACE + rb'"(' + BODY + rb')"' + SPACE + b":" + SPACE
_PAIR = SPACE + rb'"(' + BODY + rb')"' + SPACE + b":" + SPACE + rb'"(' + BODY + rb')"' + SPACE + b"([,}])"
_NEXT = SPACE + b"([,}])"


class Walk:
    """A position in `data`, which begins at `offset` of `path`; `constants` is that of `parse_json`.

    Methods raise EncodingError for what is not JSON, else InconsistentError.
    """

    def __init__(self, data: bytes, path: str, offset: int = 0, *, constants: bool = False) -> None:
        self.data, self.path, self.offset, self.pos = data, path, offset, 0
        self.constants = constants

    def key(self) -> tuple[int, str]:
        """Return where the member at `pos` begins, and its key; pass over the key."""
        begin = self.pos
        match = pattern(_KEY).match(self.data, begin)
        if match is None:
            raise self.not_json(begin, "a key")
        self.pos = match.end()
        return begin, self.text(match[1], begin)

    def pairs(self, what: str, most: int) -> Iterator[tuple[int, str, str]]:
        """Yield the members of the object of strings at `pos`: where each begins, its key and its value.

        Args:
            what: Name of the object, for errors.
            most: Bytes of a member at most.
        """
        if not self.enter(what):
            return
        while True:
            begin = self.pos
            match = pattern(_PAIR).match(self.data, begin)
            if match is None:
                key = pattern(_KEY).match(self.data, begin)
                raise self.wrong(begin if key is None else key.end(), what, "strings to strings")
            if (size := match.end() - begin) > most:
                place = self.offset + begin
                raise OutOfRangeError(
                    f"a line of {what}", path=self.path, offset=place, found=size, expected=f"≤ {most}"
                )
            self.pos = match.end()
            yield begin, self.text(match[1], begin), self.text(match[2], begin)
            if match[3] == b"}":
                return

    def enter(self, what: str) -> bool:
        """Pass over the opening bracket of the object at `pos`; return whether it has members."""
        match = pattern(_OPEN).match(self.data, self.pos)
        if match is None:
            raise self.wrong(self.pos, what, "an object")
        self.pos = match.end()
        if self.data[self.pos : self.pos + 1] == b"}":
            self.pos += 1
            return False
        return True

    def more(self) -> bool:
        """Pass over what follows a value; return True for a comma, False for the closing bracket of the object."""
        match = pattern(_NEXT).match(self.data, self.pos)
        if match is None:
            raise self.not_json(self.pos, "',' or '}'")
        self.pos = match.end()
        return match[1] == b","

    def finish(self) -> None:
        """Check that nothing but white space follows."""
        if rest := self.data[self.pos :].lstrip(b" \t\r\n"):
            raise self.not_json(len(self.data) - len(rest), "nothing more")

    def value(self, what: str, most: int) -> Any:
        """Return the value at `pos`, which may nest three levels deep and take `most` bytes at most."""
        match = pattern(VALUE).match(self.data, self.pos)
        if match is None or match.end() - self.pos > most:
            raise self.wrong(self.pos, what, f"a plain value of ≤ {most} bytes")
        value = parse_json(match[0], self.path, self.offset + self.pos, constants=self.constants)
        self.pos = match.end()
        return value

    def text(self, body: bytes, at: int) -> str:
        """Return the text between the quotes of a string."""
        try:
            text = body.decode() if b"\\" not in body else str(json.loads(b'"' + body + b'"'))
        except UnicodeDecodeError:
            raise EncodingError("JSON text is not UTF-8", path=self.path, offset=self.offset + at) from None
        if b"\\" in body and not is_text(text):
            raise EncodingError("half of a UTF-16 pair in JSON", path=self.path, offset=self.offset + at)
        return text

    def wrong(self, at: int, what: str, expected: str) -> CorruptError:
        """Return the error for an unexpected value at `at`: not JSON, or JSON other than `expected`."""
        piece = self.data[at : at + LOOK]
        place = self.offset + at
        try:
            parse_json(piece, self.path, place, whole=False)
        except EncodingError as error:
            if len(piece) < LOOK or (error.offset or 0) < place + LOOK - 16:
                return error
        except CorruptError as error:
            return error
        found = piece[:80].decode(errors="replace")
        return InconsistentError(what, path=self.path, offset=place, found=found, expected=expected)

    def not_json(self, at: int, expected: str) -> EncodingError:
        found = self.data[at : at + 20].decode(errors="replace")
        return EncodingError("not JSON", path=self.path, offset=self.offset + at, found=found, expected=expected)
