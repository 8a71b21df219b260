"""Several types of one model at once: which requests a list of types makes, and the table of what came out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

from ggferry.converters.conversion.mmproj import PLACE, second_out
from ggferry.converters.conversion.options import types_of
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result
from ggferry.formats.errors import UsageError
from ggferry.support.records import dataclass


def requests_of(outtypes: str, out: str | None, request: Callable[[str], Request]) -> list[Request]:
    """Return a request for every type of a list.

    Args:
        outtypes: The types, separated by commas.
        out: The output's name, with PLACE where there are several, or a folder; None: beside the source.
        request: Returns the request for one type.

    Raises:
        UsageError: A type is missing or stands there twice, or one name is given for several outputs.
    """
    types = types_of(outtypes)
    if len(types) > 1 and out is not None and PLACE not in out and not os.path.isdir(out):
        hint = f"-o 'model-{PLACE}.gguf', or a folder"
        raise UsageError("several types, and one name for them", found=out, expected=f"a name with {PLACE}", hint=hint)
    return [_placed(request(name), out, name) for name in types]


def _placed(request: Request, out: str | None, outtype: str) -> Request:
    """Return the request with its output's name, in which PLACE stands for the type."""
    if out is None or os.path.isdir(out) or request.to != "gguf":  # a folder in Hugging Face's form has no second file
        return replace(request, out=out)
    second = request.mmproj_out or second_out(out, request)
    return replace(request, out=out.replace(PLACE, outtype), mmproj_out=second)


@dataclass(frozen=True, slots=True)
class Rating:
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


def rating(result: Result) -> Rating:
    """Return the numbers of a finished conversion."""
    return rating_of(result.receipt, result.path)


def rating_of(receipt: Mapping[str, Any], path: str) -> Rating:
    """Return the numbers of the output at `path`, as its receipt states them."""
    tensors: Sequence[Mapping[str, Any]] = receipt["tensors"]
    elements = sum(prod(tensor["shape"]) for tensor in tensors)
    bits = 8 * sum(tensor["bytes"] for tensor in tensors)
    worst = max(tensors, key=lambda tensor: tensor.get("relative_rms") or 0.0, default={})
    rounded = worst.get("relative_rms") or None
    return Rating(
        str(receipt["options"]["outtype"]), path, sum(file["bytes"] for file in receipt["output"]["files"]),
        bits / elements if elements else 0.0, worst["name"] if rounded else None, rounded,
        (receipt.get("logits") or {}).get("kl_divergence"),
    )  # fmt: skip


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table: type, size, bits per weight, worst tensor, divergence of the logits."""
    return table_of([rating(result) for result in results])


def table_of(ratings: Sequence[Rating]) -> list[str]:
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
