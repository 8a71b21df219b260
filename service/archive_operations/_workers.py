"""Options that several verbs on archives have: their workers, the ledger, the stores they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.service.operation import argument, declare
from ggferry.support.platform import here

if TYPE_CHECKING:
    from ggferry.service.workers.supervisor import Limits

JsonLines = Annotated[bool, declare(Kind.FLAG, "JSON on stdout.", "--json")]
LedgerUrl = Annotated[str, argument("A ledger's path or URL, or env:NAME.", Kind.TEXT, metavar="LEDGER")]
Memory = Annotated[
    int | str,
    declare(Kind.SIZE, "Memory cap of each worker process; 0: none. 4G is 4·10⁹ bytes, 4GiB is 4·2³⁰.", "--memory",
            metavar="SIZE"),
]
RetryTimeout = Annotated[
    float,
    declare(
        Kind.SECONDS, "How long to retry a store that fails temporarily.", "--patience", metavar="SECONDS", least=0
    ),
]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return here.cores()


def limits_of(memory: int | str, threads: int) -> Limits:
    """Return the limits of a worker. Raises UsageError."""
    from ggferry.service.operation import size_of
    from ggferry.service.workers.supervisor import Limits

    return Limits(size_of(memory, "--memory"), threads)
