"""What the patterns of one tokenizer.json may cost: a stranger's regular expression can take for ever, or all memory.

Three fences. Before a pattern is compiled, its length and how often its repetitions write it out: `regex` unrolls
`(?:a{300}){300}` while it compiles, without a time limit (`(?:(?:a{300}){300}){300}` takes 7 GB). While patterns are
compiled and matched, one clock for the whole file, in seconds of CPU. And text may not be made longer without end.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any

from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import compiled, cut
from ggferry.formats.errors import UnsupportedError

SECONDS = 10.0  # of CPU; the patterns of real files take milliseconds
MAX_PATTERN = 1 << 14  # characters; DeepSeek-LLM's longest has 1,500
MAX_PATTERNS = 1 << 15  # characters of all patterns of a file, and what their repetitions write out
MAX_GROUPS = 200  # one within another
GROWTH, ROOM = 64, 4096  # text may become so many times as long, and a little more; NFKC makes 18 of one

_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(?:[pPNgkLx]\{[^}]*\}|.)", re.DOTALL)
_GROUP = re.compile(r"\(\?(?:[:=!>|]|<[=!]|P?<\w+>|[\w-]*:|[\w-]+(\)))")  # with flags for all that follows: no group
# What only `regex` knows, not the Oniguruma such patterns are written for: recursion and approximate matches.
_ALIEN = re.compile(r"\(\?(?:R\)|&|P>|[+-]?\d)|\{[^}]*[eids][^}]*\}")


def written_out(pattern: str) -> int:
    """How many characters and sets `pattern` has with its counted repetitions written out as often as they may match.

    Raises ValueError for groups too deep, and for what only `regex` would understand.
    """
    stack, last, at = [0], 0, 0
    while at < len(pattern):
        sign = pattern[at]
        if sign in "({" and (alien := _ALIEN.match(pattern, at)):
            raise ValueError(f"{alien[0]!r} is no part of such patterns")
        if sign in "*+?" or (sign == "{" and _COUNTED.match(pattern, at)):
            times, at = _times(pattern, at)
            stack[-1] += last * (times - 1)
            last *= times
            continue
        if sign == "(":
            match = _GROUP.match(pattern, at)
            last, at = 0, match.end() if match else at + 1
            stack += [] if match is not None and match[1] else [0]
            if len(stack) > MAX_GROUPS:
                raise ValueError(f"more than {MAX_GROUPS} groups within another")
            continue
        if sign == ")" and len(stack) > 1:
            last, at = max(1, stack.pop()), at + 1
        else:
            last, at = 1, _behind(pattern, at)
        stack[-1] += last
    return sum(stack)


def _times(pattern: str, at: int) -> tuple[int, int]:
    """How often the quantifier at `at` repeats what it can count, and the place behind it."""
    match = _COUNTED.match(pattern, at)
    if match is None:
        return 1, at + 1
    low, high = (int(digits[:9]) if digits else 1 for digits in match.group(1, 3))
    return max(1, low, high), match.end()


def _behind(pattern: str, at: int) -> int:
    """The place behind one character, escape or set."""
    if pattern[at] == "\\":
        match = _ESCAPE.match(pattern, at)
        return match.end() if match else at + 1
    if pattern[at] != "[":
        return at + 1
    depth = 0
    while at < len(pattern):
        sign = pattern[at]
        depth += (sign == "[") - (sign == "]")
        at = _behind(pattern, at) if sign == "\\" else at + 1
        if not depth:
            break
    return at


class Budget:
    """Of one tokenizer.json, at `path`; with `seconds` infinite, for patterns of our own, nothing is counted."""

    def __init__(self, path: str | None = None, seconds: float = SECONDS) -> None:
        self.path, self.left = path, seconds
        self.characters = MAX_PATTERNS if math.isfinite(seconds) else math.inf

    def compile(self, pattern: str) -> Any:
        """`pattern` compiled. Raises UnsupportedError for one that costs too much or does not compile."""
        if math.isinf(self.left):
            return compiled(pattern)
        try:
            cost = max(len(pattern), written_out(pattern)) if len(pattern) <= MAX_PATTERN else math.inf
        except ValueError as error:
            raise UnsupportedError(f"a pattern: {error}", path=self.path, found=pattern) from None
        self.characters -= cost
        if self.characters < 0:
            limit = f"≤ {MAX_PATTERN} characters, ≤ {MAX_PATTERNS} in all with repetitions written out"
            raise UnsupportedError("the patterns of a tokenizer", path=self.path, found=pattern, expected=limit)
        began = time.thread_time()
        matcher = compiled(pattern)
        self.spend(began, pattern)
        return matcher

    def cut(self, matcher: Any, text: str) -> list[tuple[str, bool]]:
        """`pretokenizers.cut` within what is left. Raises UnsupportedError when that is used up."""
        if math.isinf(self.left):
            return cut(matcher, text)
        began = time.thread_time()
        try:
            parts = cut(matcher, text, self.left)
        except UnsupportedError:
            raise self.for_ever(matcher.pattern) from None
        self.spend(began, matcher.pattern)
        return parts

    def replace(self, matcher: Any, content: str, text: str) -> str:
        """`text` with every match replaced by `content`, within what is left."""
        room = self.most(text) - len(text)

        def put(_: Any) -> str:
            nonlocal room
            room -= len(content)
            if room < 0:
                raise self.too_long(text)
            return content

        began = time.thread_time()
        try:
            made = str(matcher.sub(put, text, timeout=self.left if math.isfinite(self.left) else None))
        except TimeoutError:
            raise self.for_ever(matcher.pattern) from None
        self.spend(began, matcher.pattern)
        return made

    def spend(self, began: float, pattern: str) -> None:
        """Take the CPU time since `began` from what is left."""
        self.left -= time.thread_time() - began
        if self.left <= 0:
            raise self.for_ever(pattern)

    def for_ever(self, pattern: str) -> UnsupportedError:
        limit = f"≤ {SECONDS:g} seconds for all of them"
        return UnsupportedError(
            "the patterns of a tokenizer take for ever", path=self.path, found=pattern, expected=limit
        )

    def most(self, text: str) -> float:
        """How long `text` may become."""
        return GROWTH * len(text) + ROOM if math.isfinite(self.left) else math.inf

    def check_length(self, text: str, length: int) -> None:
        """Raises UnsupportedError when what was `text` has become longer than anything real makes it."""
        if length > self.most(text):
            raise self.too_long(text)

    def too_long(self, text: str) -> UnsupportedError:
        message = "a normalizer or pre-tokenizer that makes text longer without end"
        return UnsupportedError(message, path=self.path, found=text[:40], expected=f"≤ {GROWTH} times as long")
