"""The commands of a worker. Each takes and returns plain data; errors are those of `formats.errors`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, cast

from ggferry.converters.conversion.options import PLAN_FILES
from ggferry.converters.conversion.request import MMPROJ, Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.target_size import with_chosen_types, without_size
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.metadata.beside import FOLDER_FORMATS, FOLDER_RECEIPT, TEXT, is_folder
from ggferry.converters.metadata.receipt_fields import FileRecord, OutputReceipt, Receipt
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.write.recovery import recover
from ggferry.formats.errors import ChangedError, TransientError, VerificationError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.local_files import confined
from ggferry.formats.files.sources import LocalFile, Source, mount, open_source, unmount
from ggferry.formats.packed.holding import holding
from ggferry.service.records.plan_file import digest_of, version_class
from ggferry.service.storage.broker import BrokeredFile
from ggferry.service.workers.analyze import analyze, request_of
from ggferry.service.workers.existing_output import adopt, made_of
from ggferry.service.workers.messages import Analysis, Converted, Rechecked, Reply
from ggferry.support.content_cache import keeping
from ggferry.support.progress import Phase

KEPT_BELOW = 256 << 20
"""Bytes of weights below which a conversion keeps and finds what others of the same content need, too.

What it saves is 20 ms; the memory that it takes is for models whose bytes take longer.
"""


class Parent(Protocol):
    """The other end: `process.Channel`."""

    def stage(self, phase: Phase, total: int) -> Any: ...
    def ask(self, question: str, **facts: Any) -> Reply: ...


def run(command: Mapping[str, Any], parent: Parent) -> Any:
    """Carry one command out."""
    work = {"analyze": _analyze, "convert": _convert, "recheck": _recheck, "reopen": _reopen, "look": _look}[
        command["op"]
    ]
    with confined(command.get("trees") or ()), mounted(command.get("mount") or {}), holding():
        return work(command, parent)


@contextmanager
def mounted(remote: Mapping[str, Any]) -> Iterator[None]:
    """Open remote files (`mirror.Mirror.serve`) through the broker within the context."""
    if not remote:
        yield
        return

    def opener(path: str) -> Source | None:
        if path not in remote["files"]:
            return None
        number, size = remote["files"][path]
        return BrokeredFile(remote["address"], bytes.fromhex(remote["key"]), number, path, size)

    mount(remote["folder"], opener)
    try:
        yield
    finally:
        unmount(remote["folder"])


def _analyze(command: Mapping[str, Any], parent: Parent) -> Analysis:
    with keeping():
        return analyze(command["source"], command["recipe"], command["threads"], command.get("config"))


def _look(command: Mapping[str, Any], parent: Parent) -> Any:
    """Answer a question about a model as plain data, by the library's function of that name."""
    from ggferry.service.workers.questions import answer

    return answer(command["question"], command["source"], command.get("options") or {})


# --- convert -------------------------------------------------------------------------------------------------------


def _convert(command: Mapping[str, Any], parent: Parent) -> Converted:
    """Digest the source, ask whether that content is still to be done, convert, ask again before publishing.

    Outputs that exist are adopted; those that are missing are made of one reading.
    """
    request = request_of(command["source"], command["recipe"], command["outs"], command["threads"])
    *_, mmproj = request.outputs
    if mmproj.kind == MMPROJ and len(command["outs"]) > 1:  # one file, of whichever types are made
        request = replace(request, mmproj_out=mmproj.out, mmproj_outtype=mmproj.outtype)
    files, key = identify(command["files"], command["beside"], command["recipe"], parent, command["threads"])
    answer = parent.ask("key", key=key)
    if not answer["ok"]:
        return {}
    transport = dict(zip(files, answer.get("transport", ()), strict=False))
    for out in command["outs"] if request.to not in FOLDER_FORMATS else ():  # a folder gets its name in one step
        recover(out)
    found: dict[str, OutputReceipt] = {}
    there = [out for out in command["outs"] if os.path.lexists(out)]
    if there:  # the receipt states the types that a size led to, and they are the same each time
        request = with_chosen_types(request, parent.stage)
    for receipt in adopt(only(request, there), files, parent.stage) if there else ():
        if not is_folder(receipt):  # that of a folder is one of its files
            _note_transport(receipt, transport)
        found[_name_of(receipt, command["outs"])] = receipt
    missing = [out for out in command["outs"] if os.path.basename(out) not in found]

    def approve(receipt: OutputReceipt) -> None:
        _note_transport(receipt, transport)
        if not is_folder(receipt):
            _note_texts(receipt, found, command["outs"])
        if not made_of(receipt, files):
            raise ChangedError("changed while it was converted", path=command["source"], hint="plan again")
        name, names = _name_of(receipt, command["outs"]), [*map(os.path.basename, command["outs"])]
        if len(receipt["output"]["files"]) > 1 and name not in names:
            raise ChangedError(
                "the shards are not as planned", found=name, expected=", ".join(names), hint="plan again"
            )
        if not parent.ask("publish")["ok"]:
            raise TransientError("the lease on this job was lost; nothing was published", path=command["source"])

    if missing:
        os.makedirs(os.path.dirname(command["outs"][0]), exist_ok=True)
        small = sum(map(_size, command["files"])) < KEPT_BELOW
        with keeping() if small else nullcontext():
            results = convert(only(request, missing), parent.stage, approve)
        for out, result in zip(missing, results, strict=False):
            found[os.path.basename(out)] = result.receipt
    receipts = [found[os.path.basename(out)] for out in command["outs"]]
    own = _own_file(command["outs"][0]) if is_folder(receipts[0]) else None
    return {"receipts": receipts, "adopted": not missing, "receipt_file": own}


def only(request: Request, outs: Sequence[str]) -> Request:
    """Return the request for some of its outputs, by their names."""
    types = [spec.outtype for spec in request.outputs if spec.out in outs and spec.kind != MMPROJ]
    if not types:  # the mmproj file alone
        return request
    return replace(request, out_paths=tuple(outs), options=replace(request.options, outtype=",".join(types)))


def _name_of(receipt: OutputReceipt, outs: Sequence[str]) -> str:
    """Return the name of an output, of those that a job makes; of a folder that is the only one."""
    return os.path.basename(outs[0]) if is_folder(receipt) else str(receipt["output"]["files"][0]["name"])


def _own_file(folder: str) -> FileRecord:
    """Return the record of the receipt's file, which is one of the folder's."""
    with LocalFile(os.path.join(folder, FOLDER_RECEIPT)) as file:
        return {"name": FOLDER_RECEIPT, "bytes": file.size, "blake3": digest(file)}


def _note_texts(receipt: OutputReceipt, found: dict[str, OutputReceipt], outs: Sequence[str]) -> None:
    """Note a receipt among those found; that of an mmproj file lists the text models that were there already, too.

    The latter is approved last.
    """
    beside: list[FileRecord] | None = cast("Receipt", receipt).get(TEXT)
    if beside is None:
        found[_name_of(receipt, outs)] = receipt
        return
    names = [os.path.basename(out) for out in outs]
    beside[:] = [file for name in names if name in found for file in found[name]["output"]["files"]]


def _note_transport(receipt: OutputReceipt, transport: Mapping[str, Any]) -> None:
    """Note in the receipt how it is known that a file was read as the store has it; `transport` is by digest."""
    for record in receipt["source"]["files"]:
        if how := transport.get(record["blake3"]):
            record["transport"] = how


def identify(
    files: Sequence[str], beside: Mapping[str, str], recipe: Mapping[str, Any], parent: Parent, threads: int = -1
) -> tuple[list[str], str]:
    """Return the digests of the weights, and the key: the same for the same bytes and recipe under any name."""
    total = sum(_size(path) for path in files)
    digests = []
    with parent.stage(Phase.READING, total) as progress:
        for path in files:
            with open_source(path) as source:  # type: ignore[attr-defined]
                digests.append(digest(source, threads, progress))
    around = {}
    for role, path in sorted(beside.items()):
        with closing(open_source(path)) as source:
            around[role] = digest(source)
    plain = {key: value for key, value in recipe.items() if not _is_beside(key, value, beside)}
    return digests, digest_of([digests, around, plain, version_class()])


def _is_beside(key: str, value: Any, beside: Mapping[str, str]) -> bool:
    """Return whether an option names what was digested by content already; then its path adds nothing."""
    if key not in PLAN_FILES or not isinstance(value, str):
        return False
    return any(path == value or path.startswith(os.path.join(value, "")) for path in beside.values())


def _size(path: str) -> int:
    source = open_source(path)
    source.close()
    return source.size


# --- recheck -------------------------------------------------------------------------------------------------------


def _recheck(command: Mapping[str, Any], parent: Parent) -> Rechecked:
    """Prove a finished output against its source again."""
    request = request_of(command["source"], command["recipe"])
    level = "fast" if request.level == "none" else request.level
    request = replace(without_size(request), level=level, jobs=command["threads"])
    report = reverify(request, command["output"], parent.stage)
    return {"line": report.line, "proof": report.proof.as_dict()}


def _reopen(command: Mapping[str, Any], parent: Parent) -> Mapping[str, Any]:
    """Check what can be checked of a finished output whose source is gone.

    That is: it is a model with the tensors it had.
    """
    checkpoint = open_checkpoint(command["output"])
    try:
        apart = {name.rpartition(".")[0] for name in command.get("packed", ())}  # each written as several tensors
        refs = [ref for ref in checkpoint.tensors.values() if ref.name.rpartition(".")[0] not in apart]
        found = {ref.name: ref.type.name for ref in refs}
    finally:
        checkpoint.close()
    if found != command["tensors"]:
        odd = sorted(set(found.items()) ^ set(command["tensors"].items()))
        raise VerificationError("the tensors are not those of the receipt", path=command["output"], found=odd[0])
    return {}
