"""Everything that is printed passes here, one line at a time; untrusted text in it can do nothing but be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.support.printable import printable


def print_json(value: Any, **form: Any) -> None:
    """Print one JSON value on stdout in ASCII, everything else escaped as in JSON; `form` goes to `json.dumps`."""
    print(json.dumps(value, ensure_ascii=True, allow_nan=False, **form), flush=True)


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


def say(line: str, end: str = "\n") -> None:
    """Print one line on stderr."""
    print(printable(line), end=end, file=sys.stderr, flush=True)
