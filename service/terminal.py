"""Everything that is printed passes here: one line each, in which a stranger's text can do nothing but be read."""

from __future__ import annotations

import json
import sys
from typing import Any

from ggferry.formats.printable import printable


def print_json(value: Any, **form: Any) -> None:
    """One JSON value on stdout, in ASCII: what is not is escaped as JSON has it. `form`: of `json.dumps`."""
    print(json.dumps(value, ensure_ascii=True, allow_nan=False, **form), flush=True)


def tell(line: str) -> None:
    """One line on stdout."""
    print(printable(line))


def say(line: str, end: str = "\n") -> None:
    """One line on stderr."""
    print(printable(line), end=end, file=sys.stderr, flush=True)
