"""The loop at the heart of BPE: join the best pair of neighbors until none is left, in O(n log n)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush


class Merger:
    """Joins neighbors, lowest cost first and leftmost among equals.

    `cost(left, right)` is the cost of joining two symbols (a rank, or a negated score), None when they do not join. The
    order is that of SentencePiece's bpe_model.cc, tokenizers' word.rs and llama.cpp's work queues.
    """

    def __init__(self, cost: Callable[[str, str], float | None]) -> None:
        self._cost = cost

    def merge(self, symbols: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, str]]]:
        """Return the symbols that are left, and for each proposed text the halves that make it."""
        text = list(symbols)
        after = [*range(1, len(text)), -1]
        before = list(range(-1, len(text) - 1))
        halves: dict[str, tuple[str, str]] = {}
        queue: list[tuple[float, int, str, str]] = []

        def propose(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            cost = self._cost(text[left], text[right])
            if cost is not None:
                halves[text[left] + text[right]] = (text[left], text[right])
                heappush(queue, (cost, left, text[left], text[right]))

        for right in range(1, len(text)):
            propose(right - 1, right)
        while queue:
            _, left, first, second = heappop(queue)
            right = after[left]
            # a stale proposal: one of its halves has been merged elsewhere since
            if text[left] != first or right < 0 or text[right] != second:
                continue
            text[left], text[right] = first + second, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            propose(before[left], left)
            propose(left, after[left])
        return [symbol for symbol in text if symbol], halves
