"""Run several forward passes while reading the weights once.

Every pass runs in a thread, as many at a time as the weights have threads, and stops where it wants rows multiplied.
When all have stopped, those that wait for the same matrix are served together, by one product of their concatenated
rows. So a matrix is read and decoded once for the group, whatever the computation is. Passes over several models with
the same roles run side by side: the products of all are computed at once, and a matrix that two models have in common
is read once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ggferry.converters.forward.device import making_tensors
from ggferry.converters.forward.weights import Factor, Weights, compute, one_thread
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from ggferry.formats.checkpoint import TensorRef
    from ggferry.quant.types import Floats

Pass = Callable[[Weights], None]
"""A forward pass, called with the weights to use."""
_Rows: TypeAlias = "dict[tuple[int, ...], tuple[list[torch.Tensor], torch.Tensor]]"
"""Rows of several passes, by their identities: they themselves, and one below the other."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request of one pass: its rows x, multiplied."""

    factor: Factor
    x: torch.Tensor

    @property
    def place(self) -> tuple[float, float]:
        """Return how early the request comes in a pass: by block, and within a block by expert.

        Passes choose different experts, so some run ahead of others. The last ones are served first, so that they catch
        up and later requests can be served together.
        """
        number = self.factor.name.removeprefix("blk.").partition(".")[0]
        item = math.inf if self.factor.item is None else self.factor.item
        return float(number) if number.isdecimal() else math.inf, item


@dataclass(slots=True)
class _Runner:
    """One pass: when its thread may go on, what it waits for, and how it ended."""

    weights: Weights
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    wish: _Wish | None = None
    answer: torch.Tensor | None = None
    error: BaseException | None = None
    stop: bool = False


class _Stopped(BaseException):
    """Ends a pass because another one failed."""


class _Shared(Weights):
    """The weights as one pass sees them: every product is a request."""

    def __init__(self, runner: _Runner, turn: threading.Semaphore) -> None:
        super().__init__(runner.weights.graph, device=runner.weights.device, wide=runner.weights.wide)
        self._runner, self._turn = runner, turn

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        return self._runner.weights.values(ref, start, stop)

    def multiply(self, factor: Factor, x: torch.Tensor) -> torch.Tensor:
        runner = self._runner
        runner.wish = _Wish(factor, x)
        self._turn.release()
        runner.go.acquire()
        if runner.stop:
            raise _Stopped
        answer, runner.answer = runner.answer, None
        assert answer is not None
        return answer


def batched(groups: Sequence[tuple[Weights, Sequence[Pass]]]) -> None:
    """Run passes over one model or several, which compute on one device, to their ends.

    A pass may read what those of earlier groups left before they asked for the same matrix. When a pass raises, the
    others are stopped, and its error is raised.
    """
    turn = threading.Semaphore(0)
    runners = [[_Runner(weights) for _ in passes] for weights, passes in groups]

    def run(work: Pass, runner: _Runner) -> None:
        runner.go.acquire()
        try:
            if not runner.stop:
                work(_Shared(runner, turn))
        except _Stopped:
            pass
        except BaseException as error:
            runner.error = error
        turn.release()

    threads = [
        threading.Thread(target=run, args=pair, daemon=True)
        for (_, passes), group in zip(groups, runners, strict=True)
        for pair in zip(passes, group, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        with one_thread(), ThreadPoolExecutor(groups[0][0].threads, "ggferry") as pool:
            _take_turns(runners, turn, pool)
    finally:
        for group in runners:
            for runner in group:
                runner.stop = True
                runner.go.release()
        for thread in threads:
            thread.join()


def _take_turns(groups: Sequence[Sequence[_Runner]], turn: threading.Semaphore, pool: ThreadPoolExecutor) -> None:
    ready: Sequence[Sequence[_Runner]] = groups
    rows: _Rows = {}
    while any(ready):
        for group in ready:
            _go_on(group, turn)
        waiting = [(runner.wish.place, runner.wish) for group in groups for runner in group if runner.wish is not None]
        ready = []
        if waiting:
            factor = min(waiting, key=lambda pair: pair[0])[1].factor
            ready = [[each for each in group if each.wish and each.wish.factor == factor] for group in groups]
            _serve(factor, [runner for group in ready for runner in group], rows, pool)


def _go_on(runners: Sequence[_Runner], turn: threading.Semaphore) -> None:
    """Let passes run, as many at a time as there are threads, until all of them have stopped."""
    threads = runners[0].weights.threads if runners else 0
    for number, runner in enumerate(runners):
        if number >= threads:
            turn.acquire()
        runner.go.release()
    for _ in runners[-threads:]:
        turn.acquire()
    for runner in runners:
        if runner.error is not None:
            raise runner.error


def _serve(factor: Factor, chosen: Sequence[_Runner], rows: _Rows, pool: ThreadPoolExecutor) -> None:
    """Answer passes that wait for one matrix: those that take it from the same weights by one product.

    `rows` are those of the last time, and then of this one: queries, keys and values are made of the same ones.
    """
    holders: dict[int, tuple[Weights, list[_Runner]]] = {}
    for runner in chosen:
        holder = runner.weights.holder(factor)
        holders.setdefault(id(holder), (holder, []))[1].append(runner)
    products, made = [], {}
    for weights, runners in holders.values():
        parts = [runner.wish.x for runner in runners if runner.wish]
        key = tuple(map(id, parts))
        with torch.inference_mode(), making_tensors(weights.device):
            made[key] = rows.get(key) or (parts, torch.cat(parts))
            products.append(weights.product(factor, made[key][1]))
    rows.clear()
    rows.update(made)
    compute(products, chosen[0].weights.threads, pool)
    for (_, runners), product in zip(holders.values(), products, strict=True):
        lengths = [len(runner.wish.x) for runner in runners if runner.wish]
        for runner, part in zip(runners, torch.split(product.result, lengths), strict=True):
            runner.wish, runner.answer = None, part
