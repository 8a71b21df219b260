"""Check finished outputs again: their bytes against receipts, or the whole proof."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.converters.conversion.options import LEVELS
from ggferry.converters.metadata.beside import is_folder
from ggferry.formats.errors import GgferryError, of_os
from ggferry.service.records.fields import LedgerRow
from ggferry.service.records.ledger import BUCKETS, DONE, Ledger
from ggferry.service.records.ledger_rows import raise_damaged
from ggferry.service.records.option_paths import with_paths
from ggferry.service.records.plan_file import outputs_of
from ggferry.service.records.receipts import receipt_of_output, receipts_of
from ggferry.service.storage.stores import exists, is_remote, local_path, split
from ggferry.service.workers.existing_output import not_intact, unproved
from ggferry.service.workers.supervisor import Limits, Supervisor, WorkerDied, WorkerFailed, WorkerTimeout


def recheck(ledger: Ledger, share: float, full: bool, memory: int) -> Iterator[tuple[LedgerRow, str | None]]:
    """Yield each job that is checked with what is wrong with it, None for nothing.

    `share` of the jobs are checked, chosen by their ids, and at least one. Raises CorruptError after the last of them
    where rows of the ledger are damaged, which it names.
    """
    done, damaged = ledger.sound_rows(None, [DONE])
    chosen = [row for row in done if row["bucket"] < share * BUCKETS] or done[:1]
    with Supervisor(Limits(memory, 1)) as supervisor, tempfile.TemporaryDirectory(prefix="ggferry-") as scratch:
        for row in chosen:
            try:
                problem = _digests(row, scratch)
                if problem is None and full:
                    problem = _proof(row, supervisor)
            except GgferryError as error:
                problem = str(error)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                problem = f"its row in the ledger is damaged: {type(error).__name__}: {error}"
            except OSError as error:  # of one disk: the other outputs are still to be inspected
                problem = str(of_os(error))
            yield row, problem
    raise_damaged(damaged)


def _digests(row: LedgerRow, scratch: str) -> str | None:
    outputs, receipts = outputs_of(row["entry"]), receipts_of(row["receipt"])
    places = [_seen_by(output, receipt) for output, receipt in zip(outputs, receipts, strict=False)]
    places += outputs[len(places) :]
    if gone := next((output for output, place in zip(outputs, places, strict=True) if not exists(place)), None):
        return _named(gone, outputs, "is gone")
    if odd := not_intact(outputs, row["receipt"], scratch):
        return _named(odd, outputs, "is not what its receipt says")
    level = str(row["entry"]["recipe"].get("verify", "full"))
    whys = (unproved(receipt, level) for receipt in receipts) if level != LEVELS[0] else ()
    return next(filter(None, whys), None)


def _seen_by(output: str, receipt: Mapping[str, Any]) -> str:
    """Return the file by which an output is seen to be there: stores have no folders."""
    return receipt_of_output(output, receipt) if is_folder(receipt) else output


def _named(output: str, outputs: Sequence[str], problem: str) -> str:
    """Return a problem with the output that has it, where there are several, or with the file of a folder."""
    if output not in outputs:
        return f"{split(output)[1]} {problem}"
    return f"{output} {problem}" if len(outputs) > 1 else problem


def _proof(row: LedgerRow, supervisor: Supervisor) -> str | None:
    entry, outputs = row["entry"], outputs_of(row["entry"])
    if any(is_remote(path) for path in (entry["source"], *outputs)):
        return "the whole proof is made of local files only: fetch both, then ggferry verify"
    recipe = with_paths(entry["recipe"], local_path)
    for output, receipt in zip(outputs, receipts_of(row["receipt"]), strict=True):
        own = {**recipe, "outtype": receipt["options"]["outtype"]} if len(outputs) > 1 else recipe
        command = {"op": "recheck", "output": local_path(output), "recipe": own, "threads": 1}
        if row["deleted"]:  # on purpose; what can be asked of the output alone is
            tensors = {tensor["name"]: tensor["type"] for tensor in receipt["tensors"] if "packed" not in tensor}
            packed = [tensor["name"] for tensor in receipt["tensors"] if "packed" in tensor]
            command |= {"op": "reopen", "tensors": tensors, "packed": packed}
        try:
            supervisor.run({**command, "source": local_path(entry["source"]), "trees": entry.get("trees")})
        except WorkerFailed as failure:
            return _named(output, outputs, str(failure.error.get("message")))
        except (WorkerDied, WorkerTimeout) as failure:
            return _named(output, outputs, str(failure))
    return None
