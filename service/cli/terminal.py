"""Everything that is printed passes here, one line at a time; untrusted text in it can do nothing but be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.support.printable import printable
from ggferry.support.records import dataclass

INFO, ERROR = "info", "error"
"""Levels of a line on stderr; --quiet leaves only the second."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How this command speaks on stderr.

    Attributes:
        quiet: Errors alone.
        verbose: Also how long each phase took.
        log_json: Each line is a JSON object.
    """

    quiet: bool = False
    verbose: bool = False
    log_json: bool = False


_MANNER = [Manner()]


def manner() -> Manner:
    """Return how this command speaks on stderr."""
    return _MANNER[-1]


def set_manner(chosen: Manner) -> None:
    """Let `say` and the progress displays speak so."""
    _MANNER[:] = [chosen]


def print_json(value: Any, **form: Any) -> None:
    """Print one JSON value on stdout in ASCII, everything else escaped as in JSON; `form` goes to `json.dumps`.

    A record is printed as an object of its fields.
    """
    print(json.dumps(value, ensure_ascii=True, allow_nan=False, **{"default": _fields_of, **form}), flush=True)


def _fields_of(record: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {each.name: getattr(record, each.name) for each in fields(record)}


def print_json_object(value: Mapping[str, Any]) -> None:
    """Print an object like `print_json`.

    Its long lists need not exist as lists: their items are written one by one as they are made.
    """
    opening = "{"
    for key, item in value.items():
        sys.stdout.write(f"{opening}{json.dumps(key)}: ")
        if isinstance(item, Sequence) and not isinstance(item, (str, list, tuple)):
            mark = "["
            for each in item:
                sys.stdout.write(mark + json.dumps(each, allow_nan=False))
                mark = ", "
            sys.stdout.write("[]" if mark == "[" else "]")
        else:
            sys.stdout.write(json.dumps(item, allow_nan=False))
        opening = ", "
    print("{}" if opening == "{" else "}", flush=True)


def tell(line: str) -> None:
    """Print one line on stdout."""
    print(printable(line))


def say(line: str, end: str = "\n", level: str = INFO) -> None:
    """Print one line on stderr, unless it is no error and `--quiet` is given."""
    chosen = manner()
    if chosen.quiet and level != ERROR:
        return
    if chosen.log_json:
        log(level, message=printable(line))
        return
    print(printable(line), end=end, file=sys.stderr, flush=True)


def log(level: str, **facts: Any) -> None:
    """Print a JSON object on stderr, with the time (UTC)."""
    from datetime import UTC, datetime

    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    text = json.dumps({"time": moment, "level": level, **facts}, ensure_ascii=True, allow_nan=False)
    print(text, file=sys.stderr, flush=True)
