"""Which cases of a long list the default suite runs; `make slow` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, of which all but the first of every `count` are slow."""
    return [
        case if not number % count else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)
    ]
