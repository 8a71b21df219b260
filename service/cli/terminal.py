"""Everything that is printed passes here: one line each, in which a stranger's text can do nothing but be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.support.printable import printable


def print_json(value: Any, **form: Any) -> None:
    """One JSON value on stdout, in ASCII: what is not is escaped as JSON has it. `form`: of `json.dumps`."""
    print(json.dumps(value, ensure_ascii=True, allow_nan=False, **form), flush=True)


def print_json_object(value: Mapping[str, Any]) -> None:
    """`print_json` of an object, whose long lists need not be ones: their items are written as they are made."""
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
    """One line on stdout."""
    print(printable(line))


def say(line: str, end: str = "\n") -> None:
    """One line on stderr."""
    print(printable(line), end=end, file=sys.stderr, flush=True)
