"""An output that stands already where a job would write: the job's own, noted too late, or somebody else's file.

A run may be killed between publishing a file and noting it. The next one must neither do the job again nor take a
stranger's file for its own: the receipt and the digests decide.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ggferry
from ggferry.converters.convert import Request, receipt_options
from ggferry.converters.digests import digest
from ggferry.converters.receipt import MAX_RECEIPT, SUFFIX
from ggferry.formats.errors import NotFoundError, RefusedError
from ggferry.formats.json_text import load_object
from ggferry.formats.sources import LocalFile
from ggferry.service.stores import exists, is_remote, read_whole

HINT = "move it away, or choose another output in the plan"


def adopt(out: str, sources: Sequence[str], request: Request, scratch: str = "") -> dict[str, Any]:
    """The receipt of the finished output at `out`, which is exactly what this request makes of files with the digests
    `sources`. Raises RefusedError for any other file."""
    if not exists(out + SUFFIX):
        raise RefusedError("exists already, without a receipt", path=out, hint=HINT)
    receipt = read_receipt(out)
    if not matches(receipt, sources, request) or not output_intact(out, receipt, scratch):
        raise RefusedError("exists already, and is not what this job would write", path=out, hint=HINT)
    return receipt


def read_receipt(out: str) -> dict[str, Any]:
    """The receipt beside an output, wherever that is. Raises NotFoundError, CorruptError."""
    if not is_remote(out):
        return load_object(out + SUFFIX, MAX_RECEIPT)
    try:
        found = json.loads(read_whole(out + SUFFIX, MAX_RECEIPT))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RefusedError("the receipt is none", path=out + SUFFIX, hint=HINT)
    return found


def matches(receipt: Mapping[str, Any], sources: Sequence[str], request: Request) -> bool:
    """Whether a receipt is of these sources, this request and this version. The level of proof aside: files that hold
    NaN by permission are proved without logits whatever was asked."""
    try:
        asked = json.loads(json.dumps(receipt_options(request)))
        same = all(receipt["options"].get(key) == value for key, value in asked.items() if key != "verify")
        return same and made_of(receipt, sources) and receipt["ggferry"] == ggferry.__version__
    except (KeyError, TypeError, AttributeError):
        return False


def made_of(receipt: Mapping[str, Any], sources: Sequence[str]) -> bool:
    """Whether a receipt names every one of these digests among its sources. Others beside them are tables that an
    architecture derives (rope factors, mel filters): they are no files."""
    return set(sources) <= {record["blake3"] for record in receipt["source"]["files"]}


def output_intact(out: str, receipt: Mapping[str, Any], scratch: str = "") -> bool:
    """Whether every file of an output has the bytes its receipt says. Raises AccessError or PassingError where a place
    does not tell."""
    from ggferry.service.publish import object_digest

    of: Callable[[str], str] = (lambda path: object_digest(path, scratch)) if is_remote(out) else _digest
    folder = out.rpartition("/")[0] if is_remote(out) else os.path.dirname(out)
    try:
        written = {os.path.basename(str(r["name"])): r["blake3"] for r in receipt["output"]["files"]}
        return bool(written) and all(of(f"{folder}/{name}") == blake3 for name, blake3 in written.items())
    except (KeyError, TypeError, NotFoundError):
        return False


def _digest(path: str) -> str:
    with LocalFile(path) as file:
        return digest(file)
