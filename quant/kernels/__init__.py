"""Compiled inner loops of the codecs (numba, CPU). They are imported only when a kernel is used.

Encoders exist here alone. Decoders and roundings have a reference in numpy beside the type; what is compiled gives the
same bits, and takes the reference's place once there is enough work to pay for loading it (`Compiled`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ggferry.quant.types import Bytes, Floats


_listener: Callable[[bool], None] | None = None


def on_compilation(listener: Callable[[bool], None]) -> None:
    """Call `listener` once, from any thread, if a kernel must be compiled because no cache has its code.

    It is passed whether the code will be kept for later processes.
    """
    global _listener
    _listener = listener


def announce_compilation(kept: bool) -> None:
    """Call the listener; a kernel does this before it is compiled."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener(kept)


class Encoder:
    """A `Codec.encode` that is a kernel: loaded when it is first called, and compiled then if no cache has it.

    Compiling takes seconds, once on each machine. Who knows that the kernel will be needed says so before (`expect`).
    """

    def __init__(self, module: str, name: str) -> None:
        """Declare the kernel `name` of `module`, the module's full name."""
        self.module, self.name = module, name
        self._expected: set[bool] = set()

    def __call__(self, values: Floats, weights: Floats | None = None) -> Bytes:
        """Encode float32 `(R, columns)` by importances float32 `(columns,)`, if given; see `Codec.encode`."""
        run: Any = getattr(import_module(self.module), self.name)
        rows: Bytes = run(values, weights)
        return rows

    def prefetch(self, columns: int, weighted: bool) -> None:
        """Have the kernel loaded or compiled in the background, by encoding a row of zeros, `columns` of them."""
        if weighted not in self._expected:
            self._expected.add(weighted)
            _in_background(lambda: self._rehearse(columns, weighted))

    def _rehearse(self, columns: int, weighted: bool) -> None:
        import numpy as np

        with suppress(Exception):  # who encodes in earnest meets it again, and says so
            self(np.zeros((1, columns), np.float32), np.ones(columns, np.float32) if weighted else None)


ENOUGH, ENOUGH_WITH_NUMBA = 1 << 26, 1 << 22
"""Elements from which loading a kernel costs less than it saves: with numba to be imported (0.2 s), and without."""


_pool: ThreadPoolExecutor | None = None
_lock, _loading = threading.Lock(), threading.RLock()


def _in_background(work: Callable[[], None]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    global _pool
    with _lock:
        _pool = _pool or ThreadPoolExecutor(1, "ggferry-compile")
        _pool.submit(work)


def forget_expected() -> None:
    """Leave uncompiled what is only expected: a process that failed would wait for it before it ends."""
    global _pool
    with _lock:
        if _pool is not None:
            _pool.shutdown(wait=False, cancel_futures=True)
            _pool = None


class Compiled:
    """A function that has a reference in numpy, compiled: loaded in the background once there is enough to do.

    The reference serves until then, and whenever loading fails, so nothing waits for the compiler and nobody can tell
    from the result which of the two has run.
    """

    def __init__(self, module: str, name: str, signature: str = "DECODE", agrees: Callable[[Any], bool] | None = None):
        """Declare the kernel `name` of `module`.

        Args:
            module: The full name of its module.
            name: Name of the function.
            signature: Which of `decode_common`'s signatures it has.
            agrees: Tells, of the loaded kernel, whether it gives the reference's bits; one that does not is not used.
        """
        self.module, self.name, self.signature, self.agrees = module, name, signature, agrees
        self._run: Any = None
        self._started = False
        self._done = 0

    def after(self, elements: int) -> Any:
        """Return the kernel, or None while it is not there. `elements`: the work that is about to be done."""
        if self._run is None and not self._started:
            self._done += elements
            if self._done >= (ENOUGH_WITH_NUMBA if "numba" in sys.modules else ENOUGH):
                self._started = True
                _in_background(self.if_possible)
        return self._run

    def load(self) -> Any:
        """Return the kernel, compiled now if no cache has it."""
        with _loading:
            if self._run is None:
                run: Any = getattr(import_module(self.module), self.name)
                if not run.signatures:
                    common: Any = import_module("ggferry.quant.kernels.decode_common")
                    run.compile(getattr(common, self.signature))
                    run.disable_compile()
                if self.agrees is not None and not self.agrees(run):
                    raise RuntimeError(f"{self.name}: compiled for this machine, it differs from its reference")
                self._run = run
        return self._run

    def if_possible(self) -> Any:
        """Return the kernel as `load` does, or None where it cannot be compiled."""
        with suppress(Exception):  # a broken compiler leaves us with the reference, which is right and slow
            return self.load()
        return None


ALIGNED = 16
"""What the columns of rows that `PRODUCTS` multiplies must be a multiple of."""
PRODUCTS = Compiled("ggferry.quant.kernels.products", "products", "PRODUCTS")
"""Rows times a matrix: `products(x, rows, out, at)` puts x `(n, columns)` times rows `(m, columns)` into m columns of
`out` from `at` on; a sum does not depend on what else is computed."""
