"""Examine an output that exists where a job would write: the job's own, recorded too late, or another file.

A run may be killed between publishing a file and recording it. The next run must neither do the job again nor mistake
another file for its own. The receipt next to the file does not decide: it must be the one that this job would write,
and the file is proved again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ggferry.converters.conversion.kinds.hf_folder import HfFolderKind, is_ours
from ggferry.converters.conversion.options import LEVELS
from ggferry.converters.conversion.plan import KINDS
from ggferry.converters.conversion.receipt_options import declared_options
from ggferry.converters.conversion.request import GGUF, Request, split_mmproj
from ggferry.converters.conversion.verify import reprove
from ggferry.converters.metadata.beside import (
    FOLDER_FORMATS,
    FOLDER_RECEIPT,
    MAX_RECEIPT,
    RECEIPT,
    files_written,
    is_folder,
)
from ggferry.converters.metadata.receipt_fields import OutputReceipt
from ggferry.formats.errors import ChangedError, CorruptError, NotFoundError, RefusedError, VerificationError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.service.records.receipts import OWN, files_kept, receipts_of
from ggferry.service.storage.stores import is_remote, join, local_path, split
from ggferry.support.progress import Stage

HINT = "move it away, or choose another output in the plan"
MEASURED = ("logits", "deltas", "tokenizer", "testimonies", "verified", "notes")
"""What a receipt says about the proof alone: machines differ in the last digits.

How the source was fetched does not distinguish outputs either.
"""
OF_THE_PROOF = ("verify", "witness")
"""Options that leave no trace in the output."""
MEASURED_OF_TENSORS = ("exact", "grade", "max_error", "relative_rms", "band", "outlier")


def adopt(request: Request, sources: Sequence[str], stage: Stage) -> list[OutputReceipt]:
    """Return the receipts of the finished outputs of a request, proved again in one pass over the source.

    They are proved at the requested level, `fast` at least, and each must be what the request makes of files with the
    digests `sources`. Raises RefusedError for any other file.
    """
    main, _ = split_mmproj(request.outputs, lambda output: output.kind)
    requests = [request.of_output(output) for output in main]
    declared = [_declared(request, sources) for request in requests]
    levels = [_level(each, request) for each, request in zip(declared, requests, strict=True)]
    try:
        found = reprove(request, levels, stage)
    except VerificationError as error:
        raise _refusal(str(error.path or requests[0].out), error.message) from None
    for number, (request, receipt, before, level) in enumerate(zip(requests, found, declared, levels, strict=True)):
        if not made_of(receipt, sources):
            raise ChangedError("changed while it was read", path=request.source, hint="plan again")
        passes = before["verified"] == level and _passes(receipt) != _passes(before)
        if _settled(receipt) != _settled(before) or passes:
            raise _refusal(str(request.out), "its receipt is not the one that this job would write")
        if is_folder(before):  # what writing has measured is in it alone
            found[number] = cast("OutputReceipt", before)
    return found


def _declared(request: Request, sources: Sequence[str]) -> JSONObject:
    """Return the receipt beside an output. Raises RefusedError where it is not of this request and these sources."""
    out = str(request.out)
    place = os.path.join(out, FOLDER_RECEIPT) if request.to in FOLDER_FORMATS else out + RECEIPT
    if not os.path.lexists(place):
        raise RefusedError("exists already, without a receipt", path=out, hint=HINT)
    try:
        declared = load_object(place, MAX_RECEIPT)
    except CorruptError:
        raise _refusal(out, "its receipt cannot be read") from None
    if why := _foreign(declared, sources, request, _level(declared, request)):
        raise _refusal(out, why)
    if request.to in FOLDER_FORMATS:
        if not is_ours(out):
            raise _refusal(out, "its files are not those of its receipt")
        return declared
    for name in _written(declared):
        if not os.path.lexists(os.path.join(os.path.dirname(out), name)):
            hint = "convert --mmproj only makes it again; or move away what is there"
            raise RefusedError(f"exists already, and {name}, which was made with it, is gone", path=out, hint=hint)
    return declared


def _refusal(out: str, why: str) -> RefusedError:
    return RefusedError(f"exists already, and is not what this job would write: {why}", path=out, hint=HINT)


def _level(receipt: Mapping[str, Any], request: Request) -> str:
    """Return the level at which to prove an output.

    One that may hold NaN is proved without logits, whatever was asked.
    """
    if request.options.allow_nonfinite and request.level == "full" and receipt.get("verified") == "fast":
        return "fast"
    return request.level if request.level != LEVELS[0] else "fast"


def _foreign(receipt: Mapping[str, Any], sources: Sequence[str], request: Request, level: str) -> str | None:
    """Return why a receipt is not of this request, these sources and this very file; None when it is.

    It must state a proof at `level`. What else it says is compared with what is found.
    """
    try:
        declared = json.loads(json.dumps(_options(request)))
        if receipt.get("to", GGUF) != request.to:
            return "its receipt is of another format"
        if any(receipt["options"].get(key) != value for key, value in declared.items() if key not in OF_THE_PROOF):
            return "its receipt is of other options"
        if not made_of(receipt, sources):
            return "its receipt is of another source"
        if not is_folder(receipt) and os.path.basename(str(request.out)) not in _written(receipt):
            return "its receipt is of another file"
        if request.level != LEVELS[0] and (why := unproved(receipt, level)):
            return why
    except (KeyError, TypeError, AttributeError):
        return "its receipt is none"
    return None


def _options(request: Request) -> JSONObject:
    """Return what the receipt of a request's output states of its options."""
    kind = KINDS[request.outputs[0].kind]
    return kind.declared(request) if isinstance(kind, HfFolderKind) else declared_options(request)


def _settled(receipt: Mapping[str, Any]) -> Any:
    """Return what a receipt says that no machine and no level of proof changes.

    It has the form it has when read from a file.
    """
    record = {key: value for key, value in receipt.items() if key not in MEASURED}
    try:
        files = [{k: f[k] for k in f if k != "transport"} for f in receipt["source"]["files"]]
        record["source"] = {**receipt["source"], "files": files}
        record["options"] = {key: value for key, value in receipt["options"].items() if key not in OF_THE_PROOF}
        record["tensors"] = [{k: t[k] for k in t if k not in MEASURED_OF_TENSORS} for t in receipt["tensors"]]
    except (KeyError, TypeError, AttributeError):
        return None
    return json.loads(json.dumps(record))


def _passes(receipt: Mapping[str, Any]) -> list[bool]:
    """Return for which forward passes a receipt has figures."""
    return [receipt.get(key) is not None for key in ("logits", "deltas")]


def unproved(receipt: Mapping[str, Any], level: str) -> str | None:
    """Return why a receipt is no proof of `level`; None when it is."""
    found = receipt.get("verified")
    if found in LEVELS[1:] and LEVELS.index(found) >= LEVELS.index(level):
        return None
    return f"its output was proved {found!r}, not {level!r}"


def made_of(receipt: Mapping[str, Any], sources: Sequence[str]) -> bool:
    """Return whether a receipt names every one of these digests among its sources.

    Others among its sources are tables that an architecture derives (rope factors, mel filters), which are no files.
    """
    return set(sources) <= {record["blake3"] for record in receipt["source"]["files"]}


def _written(receipt: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the output's files by name."""
    return {os.path.basename(str(r["name"])): str(r["blake3"]) for r in files_written(receipt)}


def not_intact(outs: Sequence[str], kept: Mapping[str, Any] | None, scratch: str = "") -> str | None:
    """Return the first of a job's outputs that is not what its receipt states, of a folder the file; None when all are.

    Each must have a receipt of its own in what the ledger `kept`, and every file of it the bytes that the receipt
    states. A file that several share is read once. Raises AccessError or TransientError where a place does not answer.
    """
    receipts, seen = receipts_of(kept), dict[str, str]()
    for number, out in enumerate(outs):
        if number >= len(receipts):
            return out
        if is_folder(receipts[number]):
            if odd := _odd_file(local_path(out), kept or {}, scratch):
                return odd
        elif not _is_intact(out, receipts[number], scratch, seen):
            return out
    return None


def _odd_file(folder: str, kept: Mapping[str, Any], scratch: str) -> str | None:
    """Return the first file of a folder that is not what was proved, or is gone, with the folder."""
    name = FOLDER_RECEIPT
    try:
        kept[OWN]["blake3"]  # without it the ledger knows nothing of one file
        for record in files_kept(kept):
            name = str(record["name"])
            if _digest(join(folder, name), scratch) != record["blake3"]:
                return join(folder, name)
    except (KeyError, TypeError, NotFoundError):
        return join(folder, name)
    return None


def _is_intact(out: str, receipt: Mapping[str, Any], scratch: str, seen: dict[str, str]) -> bool:
    folder, name = split(local_path(out))
    try:
        written = _written(receipt)
        for path in (join(folder, each) for each in written):
            if path not in seen:
                seen[path] = _digest(path, scratch)
        return name in written and all(seen[join(folder, each)] == blake3 for each, blake3 in written.items())
    except (KeyError, TypeError, NotFoundError):
        return False


def _digest(path: str, scratch: str) -> str:
    from ggferry.service.storage.publish import object_digest

    if is_remote(path):
        return object_digest(path, scratch)
    with LocalFile(path) as file:
        return digest(file)
