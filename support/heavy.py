"""Heavy libraries under their usual names, each imported at its first use (docs/decisions/lazy-imports.md).

numpy costs 0.3 s of CPU to import and torch a second; `ggferry inspect` needs neither. Type checkers see the modules
themselves.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ggferry.support.interrupts import interrupts_wait

__all__ = ["import_ahead", "jinja2", "np", "regex", "sa", "torch"]


class _Lazy:
    """Stands for a module and imports it at the first use of an attribute.

    importlib.util.LazyLoader is not thread-safe before Python 3.12: a second thread sees the half-made module.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> Any:
        # An interrupt that reaches torch while its C++ parts are made aborts the process: pybind11 terminates it.
        with interrupts_wait():
            value = getattr(importlib.import_module(self.__name__), attribute)
        self.__dict__[attribute] = value
        return value


if TYPE_CHECKING:
    import jinja2
    import numpy as np
    import regex
    import sqlalchemy as sa
    import torch
else:
    jinja2, np, regex = _Lazy("jinja2"), _Lazy("numpy"), _Lazy("regex")
    sa, torch = _Lazy("sqlalchemy"), _Lazy("torch")


def import_ahead(name: str, meanwhile: Callable[[], None]) -> None:
    """Begin to import a library in a thread, so that it is there when it is wanted; what fails will fail again then.

    `meanwhile` is called every tenth of a second until it is there, and once more.
    """

    def run() -> None:
        with suppress(Exception):
            importlib.import_module(name)

    def watch() -> None:
        work.start()
        alive = True
        while alive:
            work.join(0.1)
            alive = work.is_alive()
            meanwhile()

    work = threading.Thread(target=run, name=f"import {name}")
    threading.Thread(target=watch, name=f"watch {name}").start()
