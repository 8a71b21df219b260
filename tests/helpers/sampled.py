"""`@pytest.mark.sampled(n)`: of a test's parameters `n`, spread over all, are in the default suite; the rest is `slow`.

For what is worth trying in every form, and shows a change that breaks it in a few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    groups: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            groups[item.path, item.originalname].append(item)
    for group in groups.values():
        kept = spread(len(group), group[0].get_closest_marker("sampled").args[0])
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def spread(count: int, most: int) -> set[int]:
    """At most `most` of `count` numbers from 0, the first and the last among them where there are two."""
    if count <= most:
        return set(range(count))
    return {number * (count - 1) // max(1, most - 1) for number in range(most)}
