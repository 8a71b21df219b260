"""Parse JSON text from hostile files into Python values: strict, no duplicate key, bounded depth and size, our errors.

A long text is parsed in batches of members, so that there is never a second copy of it besides the bytes and the
values: a single character beyond the BMP would make a str of it four times as large. Equal strings in its lists become
one object.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from itertools import chain, islice
from typing import Any, NoReturn

from ggferry.formats.errors import DuplicateError, EncodingError, OutOfRangeError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.limits import MAX_JSON_CONTAINERS, MAX_JSON_DEPTH, MAX_JSON_ITEMS

LONG = 1 << 20  # bytes of a text that is parsed in batches
BATCH = 4096  # members
LEVELS = 4  # of a batch, itself included

SPACE = rb"[ \t\r\n]*+"
BODY = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'
STRING = b'"' + BODY + b'"'
SCALAR = rb"[-+.0-9a-zA-Z]++"
_RUN = rb'[^\[\]{}"]{1,256}+'
# A container in a batch is a small one; their texts may be long.
_FLAT = rb"[\[{](?:" + _RUN + b"|" + STRING + rb"){0,64}+[\]}]"
_NESTED = rb"[\[{](?:" + _RUN + b"|" + STRING + b"|" + _FLAT + rb"){0,64}+[\]}]"
VALUE = b"(?:" + STRING + b"|" + SCALAR + b"|" + _NESTED + b")"
_KEY = SPACE + b"(" + STRING + b")" + SPACE + b":" + SPACE
_NEXT = SPACE + rb"([,\]}])"
_ITEMS = b"(?:" + SPACE + VALUE + SPACE + b",){1,%d}+" % BATCH
_MEMBERS = b"(?:" + SPACE + STRING + SPACE + b":" + SPACE + VALUE + SPACE + b",){1,%d}+" % BATCH
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@cache
def pattern(text: bytes) -> re.Pattern[bytes]:
    """Return `text` compiled; done at first use, so that programs that read no JSON do not pay for it."""
    return re.compile(text)


class _TwiceError(Exception):
    """A key occurs twice in one object."""


class _ConstantError(Exception):
    """NaN or an infinity where numbers are wanted."""


def _unique(pairs: list[tuple[str, Any]]) -> JSONObject:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise _TwiceError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return table


def _refuse_constant(word: str) -> NoReturn:
    raise _ConstantError(word)


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_LAX = json.JSONDecoder(object_pairs_hook=_unique)


def parse_json(data: bytes, path: str, offset: int = 0, *, constants: bool = False, whole: bool = True) -> Any:
    """Return the JSON value in `data`.

    Args:
        data: The text, UTF-8.
        path: Its file, for errors.
        offset: Where `data` begins in that file.
        constants: Whether NaN, Infinity and -Infinity are accepted.
        whole: Whether the value must be all of `data`; otherwise it need only begin there.

    Raises:
        EncodingError: Not UTF-8, or not JSON.
        DuplicateError: A key occurs twice in one object.
        OutOfRangeError: There are more values than any such file has.
    """
    parser = _Parser(data, path, offset, _LAX if constants else _STRICT)
    parser.check_counts()
    return parser.batches() if whole and len(data) > LONG else parser.piece(data, 0, 0, whole)


class _Parser:
    def __init__(self, data: bytes, path: str, offset: int, decoder: json.JSONDecoder) -> None:
        self.data, self.path, self.offset, self.decoder = data, path, offset, decoder
        self.pos = 0
        self.strings: dict[str, str] = {}

    def check_counts(self) -> None:
        """Count separators before anything is built; those inside strings count, too, which the caps allow for."""
        nested, items = (sum(map(self.data.count, marks)) for marks in ((b"[", b"{"), (b",",)))
        for what, found, most in (("brackets", nested, MAX_JSON_CONTAINERS), ("values", items, MAX_JSON_ITEMS)):
            if found > most:
                raise OutOfRangeError(f"{what} of a JSON text", path=self.path, found=found, expected=f"≤ {most}")

    # --- in one piece ---

    def piece(self, data: bytes, place: int, depth: int, whole: bool = True) -> Any:
        """Return the value that `data` is, at `place` of the text and `depth` levels deep."""
        at = self.offset + place
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EncodingError("JSON text is not UTF-8", path=self.path, offset=at + error.start) from None
        try:
            value = self.decoder.decode(text) if whole else self.decoder.raw_decode(text.lstrip(" \t\r\n"))[0]
        except json.JSONDecodeError as error:
            at += len(text[: error.pos].encode())
            raise EncodingError(f"not JSON: {error.msg}", path=self.path, offset=at) from None
        except RecursionError:
            raise self.too_deep() from None
        except _TwiceError as error:
            raise self.twice(str(error), data, at) from None
        except _ConstantError as error:
            raise EncodingError("not a JSON number", path=self.path, offset=at, found=str(error)) from None
        except ValueError as error:  # an integer of more than sys.get_int_max_str_digits() digits
            raise EncodingError(f"not JSON we read: {error}", path=self.path, offset=at) from None
        surrogates = _SURROGATE.search(text) is not None
        if surrogates or depth + LEVELS > MAX_JSON_DEPTH or (whole and data is self.data):
            self.check_tree(value, depth, surrogates)
        return value

    def twice(self, key: str, data: bytes, at: int) -> DuplicateError:
        spelled = json.dumps(key, ensure_ascii=False).encode("utf-8", "surrogatepass")
        at += max(0, data.rfind(spelled))
        return DuplicateError("duplicate JSON key", path=self.path, offset=at, found=key)

    def too_deep(self) -> EncodingError:
        limit = f"≤ {MAX_JSON_DEPTH} levels"
        return EncodingError("JSON nested too deep", path=self.path, offset=self.offset, expected=limit)

    def check_tree(self, value: Any, depth: int, surrogates: bool) -> None:
        """Check that the depth is bounded and that no string holds a lone surrogate.

        `surrogates` says whether an escape could have made one.
        """
        kinds = (dict, list, str) if surrogates else (dict, list)
        level = [value]
        while level:
            if depth > MAX_JSON_DEPTH:
                raise self.too_deep()
            depth += 1
            below: list[Any] = []
            for item in level:
                if isinstance(item, str):
                    self.check_text(item)
                    continue
                inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
                below.extend(each for each in inside if isinstance(each, kinds))
                if surrogates and isinstance(item, dict):
                    below.extend(item)
            level = below

    def check_text(self, text: str) -> None:
        if not is_text(text):
            message = "half of a UTF-16 pair in JSON"
            raise EncodingError(message, path=self.path, offset=self.offset, found=repr(text))

    # --- in batches ---

    def batches(self) -> Any:
        self.skip()
        value = self.one(0)
        self.skip()
        if self.pos != len(self.data):
            raise self.not_json("nothing more")
        return value

    def one(self, depth: int) -> Any:
        """Return the value at `pos`."""
        begin, match = self.pos, pattern(VALUE).match(self.data, self.pos)
        if match is not None:
            self.pos = match.end()
            return self.piece(match[0], begin, depth)
        mark = self.data[begin : begin + 1]
        if mark not in (b"{", b"["):
            raise self.not_json("a value")
        if depth > MAX_JSON_DEPTH:
            raise self.too_deep()
        self.pos += 1
        return self.members(depth) if mark == b"{" else self.items(depth)

    def members(self, depth: int) -> JSONObject:
        """Return the object whose opening bracket was passed."""
        found: JSONObject = {}
        while True:
            begin = self.pos
            if (match := pattern(_MEMBERS).match(self.data, begin)) is not None:
                self.merge(found, self.batch(match.end(), b"{", b"}", depth), begin)
                continue
            key = pattern(_KEY).match(self.data, begin)
            if key is None:
                raise self.not_json("a key")
            self.pos = key.end()
            self.merge(found, {self.piece(key[1], begin, depth): self.one(depth + 1)}, begin)
            if self.ends(b"}"):
                return found

    def items(self, depth: int) -> list[Any]:
        """Return the array whose opening bracket was passed."""
        found: list[Any] = []
        while True:
            if (match := pattern(_ITEMS).match(self.data, self.pos)) is not None:
                found += self.shared(self.batch(match.end(), b"[", b"]", depth))
                continue
            self.skip()
            found.append(self.one(depth + 1))
            if self.ends(b"]"):
                return found

    def batch(self, end: int, opening: bytes, closing: bytes, depth: int) -> Any:
        """Return the members from `pos` to the comma before `end`."""
        begin, self.pos = self.pos, end
        return self.piece(opening + self.data[begin : end - 1] + closing, begin - 1, depth)

    def merge(self, found: JSONObject, more: JSONObject, begin: int) -> None:
        before = len(found)
        found.update(more)
        if len(found) != before + len(more):
            again = next(key for key in islice(found, before) if key in more)
            raise self.twice(again, self.data[begin : self.pos], self.offset + begin)

    def shared(self, items: list[Any]) -> Any:
        """Return `items`; pairs of strings reuse the string objects of earlier pairs.

        Half a million merges consist of a quarter as many different tokens.
        """
        if set(map(type, items)) != {list} or set(map(len, items)) != {2}:
            return items
        flat = list(chain.from_iterable(items))
        if set(map(type, flat)) != {str}:
            return items
        halves = map(self.strings.setdefault, flat, flat)
        return map(list, zip(halves, halves, strict=True))

    def skip(self) -> None:
        match = pattern(SPACE).match(self.data, self.pos)
        self.pos = match.end() if match else self.pos

    def ends(self, closing: bytes) -> bool:
        """Pass over what follows a value; return whether it ends the container."""
        match = pattern(_NEXT).match(self.data, self.pos)
        if match is None or match[1] not in (b",", closing):
            raise self.not_json(f"',' or '{closing.decode()}'")
        self.pos = match.end(1)
        return match[1] != b","

    def not_json(self, expected: str) -> EncodingError:
        found = self.data[self.pos : self.pos + 20].decode(errors="replace")
        return EncodingError("not JSON", path=self.path, offset=self.offset + self.pos, found=found, expected=expected)


def is_text(text: str) -> bool:
    """Return whether `text` has no lone surrogate (half of a UTF-16 pair)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
