"""Listings of more objects than anybody has: a page of them is in memory at a time."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from ggferry.service.storage import stores
from ggferry.service.storage.backends import s3

PAGE = 1000


def pages(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str | None]:
    """Have the store answer with `count` objects in pages of PAGE; returns the tokens it was asked with."""
    asked: list[str | None] = []

    def answer(method: str, url: str, **more: Any) -> dict[str, Any]:
        if method == "head_object":
            return {"ContentLength": 7, "ETag": '"whole"'}
        asked.append(more.get("ContinuationToken"))
        first = int(more.get("ContinuationToken", 0))
        last = min(first + PAGE, count)
        keys = [{"Key": f"models/{n:07}/model.gguf", "Size": n + 1, "ETag": f'"{n:032x}"'} for n in range(first, last)]
        return {"Contents": keys, "IsTruncated": last < count, "NextContinuationToken": str(last)}

    monkeypatch.setattr(s3, "_call", answer)
    return asked


def most_held(count: int) -> int:
    """Return the most memory that going through a listing takes."""
    tracemalloc.start()
    try:
        assert sum(1 for _ in stores.listing("s3://archive/models")) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_listing_takes_no_more_memory_the_longer_it_is(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pages(monkeypatch, 2 * PAGE)
    short = most_held(2 * PAGE)
    asked = pages(monkeypatch, count)
    assert most_held(count) < 2 * short + (1 << 20)
    assert len(asked) == count // PAGE


def test_the_first_object_comes_before_the_second_page(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pages(monkeypatch, 10 * PAGE)
    first = next(iter(stores.listing("s3://archive/models")))
    assert first.path == "s3://archive/models/0000000/model.gguf" and asked == [None]


def test_an_object_and_nothing_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pages(monkeypatch, 0)
    [found] = stores.listing("s3://archive/one.gguf")
    assert (found.path, found.bytes) == ("s3://archive/one.gguf", 7)
    assert list(stores.listing("s3://archive")) == []
