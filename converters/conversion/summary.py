"""The table of several outputs of one model: type, size, bits per weight, what was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from ggferry.converters.conversion.run import Result
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """One output of several, in numbers.

    Attributes:
        outtype: The type that was asked for.
        path: The output, of several files the first.
        bytes: Size of its files.
        bits_per_weight: Bits of its tensors by the number of their elements.
        worst: The tensor with the largest relative error; None where nothing was compared, or nothing rounded.
        relative_rms: That error.
        kl_divergence: Of the logits from the source's, mean in nats; None where none were computed.
    """

    outtype: str
    path: str
    bytes: int
    bits_per_weight: float
    worst: str | None
    relative_rms: float | None
    kl_divergence: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return asdict(self)


def rating(result: Result) -> OutputSummary:
    """Return the numbers of a finished conversion."""
    return rating_of(result.receipt, result.path)


def rating_of(receipt: Mapping[str, Any], path: str) -> OutputSummary:
    """Return the numbers of the output at `path`, as its receipt states them."""
    tensors: Sequence[Mapping[str, Any]] = receipt["tensors"]
    elements = sum(prod(tensor["shape"]) for tensor in tensors)
    bits = 8 * sum(tensor["bytes"] for tensor in tensors)
    worst = max(tensors, key=lambda tensor: tensor.get("relative_rms") or 0.0, default={})
    rounded = worst.get("relative_rms") or None
    return OutputSummary(
        str(receipt["options"]["outtype"]),
        path,
        sum(file["bytes"] for file in receipt["output"]["files"]),
        bits / elements if elements else 0.0,
        worst["name"] if rounded else None,
        rounded,
        (receipt.get("logits") or {}).get("kl_divergence"),
    )


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table: type, size, bits per weight, worst tensor, divergence of the logits."""
    return table_of([rating(result) for result in results])


def table_of(ratings: Sequence[OutputSummary]) -> list[str]:
    """Return the lines of a table of these numbers."""
    rows = [("type", "size", "bits/weight", "worst tensor (relative RMS)", "logit KL (nats)", "file")]
    for one in ratings:
        worst = f"{one.worst} ({one.relative_rms:.2g})" if one.worst else "–"
        kl = "–" if one.kl_divergence is None else f"{one.kl_divergence:.2g}"
        rows.append((one.outtype, f"{one.bytes:,}", f"{one.bits_per_weight:.2f}", worst, kl, one.path))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = (1, 2, 4)
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
