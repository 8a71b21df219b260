"""Run several forward passes while reading the weights once.

Every pass runs in a thread, as many at a time as the weights have threads, and stops where it wants rows multiplied.
When all have stopped, those that wait for the same matrix are served together, by one product of their concatenated
rows. So a matrix is read and decoded once for the group, whatever the computation is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.device import making_tensors
from ggferry.converters.forward.weights import Weights, one_thread
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch

    from ggferry.formats.checkpoint import TensorRef
    from ggferry.quant.codec import Floats
else:
    torch = lazy("torch")

Pass = Callable[[Weights], None]
"""A forward pass, called with the weights to use."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request of one pass: `method(*names, x)` of the weights, for its rows x."""

    method: str
    names: tuple[Any, ...]
    x: torch.Tensor

    @property
    def key(self) -> tuple[str, tuple[Any, ...]]:
        return self.method, self.names

    @property
    def place(self) -> tuple[float, float]:
        """Return how early the request comes in a pass: by block, and within a block by expert.

        Passes choose different experts, so some run ahead of others. The last ones are served first, so that they catch
        up and later requests can be served together.
        """
        name, item = (*self.names, float("inf"))[:2]
        number = name.removeprefix("blk.").partition(".")[0]
        return float(number) if number.isdecimal() else float("inf"), item


@dataclass(slots=True)
class _Runner:
    """One pass: when its thread may go on, what it waits for, and how it ended."""

    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    wish: _Wish | None = None
    answer: torch.Tensor | None = None
    error: BaseException | None = None
    stop: bool = False


class _Stopped(BaseException):
    """Ends a pass because another one failed."""


class _Shared(Weights):
    """The weights as one pass sees them: every product is a request."""

    def __init__(self, weights: Weights, runner: _Runner, turn: threading.Semaphore) -> None:
        super().__init__(weights.graph, device=weights.device)
        self._weights, self._runner, self._turn = weights, runner, turn

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        return self._weights.values(ref, start, stop)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._ask("linear", name, x=x)

    def turned_linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._ask("turned_linear", name, x=x)

    def item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        return self._ask("item_linear", name, item, x=x)

    def turned_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        return self._ask("turned_item_linear", name, item, x=x)

    def _ask(self, method: str, *names: Any, x: torch.Tensor) -> torch.Tensor:
        runner = self._runner
        runner.wish = _Wish(method, names, x)
        self._turn.release()
        runner.go.acquire()
        if runner.stop:
            raise _Stopped
        answer, runner.answer = runner.answer, None
        assert answer is not None
        return answer


def in_lockstep(weights: Weights, passes: Sequence[Pass]) -> None:
    """Run the passes to their ends. When one of them raises, stop the others and raise its error."""
    turn, runners = threading.Semaphore(0), [_Runner() for _ in passes]

    def run(work: Pass, runner: _Runner) -> None:
        runner.go.acquire()
        try:
            if not runner.stop:
                work(_Shared(weights, runner, turn))
        except _Stopped:
            pass
        except BaseException as error:
            runner.error = error
        turn.release()

    threads = [
        threading.Thread(target=run, args=(work, runner), daemon=True)
        for work, runner in zip(passes, runners, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        with one_thread():
            _take_turns(weights, runners, turn)
    finally:
        for runner in runners:
            runner.stop = True
            runner.go.release()
        for thread in threads:
            thread.join()


def _take_turns(weights: Weights, runners: Sequence[_Runner], turn: threading.Semaphore) -> None:
    ready: Sequence[_Runner] = runners
    while ready:
        for number, runner in enumerate(ready):
            if number >= weights.threads:
                turn.acquire()
            runner.go.release()
        for _ in ready[-weights.threads :]:
            turn.acquire()
        for runner in ready:
            if runner.error is not None:
                raise runner.error
        waiting = [(runner, runner.wish) for runner in runners if runner.wish is not None]
        ready = []
        if waiting:
            first = min((wish for _, wish in waiting), key=lambda wish: wish.place)
            chosen = [(runner, wish) for runner, wish in waiting if wish.key == first.key]
            _serve(weights, chosen)
            ready = [runner for runner, _ in chosen]


def _serve(weights: Weights, chosen: Sequence[tuple[_Runner, _Wish]]) -> None:
    wishes = [wish for _, wish in chosen]
    rows = torch.cat([wish.x for wish in wishes])
    with torch.inference_mode(), making_tensors(weights.device):
        product = getattr(weights, wishes[0].method)(*wishes[0].names, rows)
    for (runner, _), part in zip(chosen, product.split([len(wish.x) for wish in wishes]), strict=True):
        runner.wish, runner.answer = None, part
