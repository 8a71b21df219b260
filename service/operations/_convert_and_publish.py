"""Convert a model and publish what was proved on the Hugging Face Hub, in one run that goes on where it ended.

Outputs that a run before this one has made of the same source, with the same options, are not made again, and those
that it has published and removed are not either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import prod
from typing import Any

import ggferry
from ggferry.converters.conversion.kinds.gguf import plan_in
from ggferry.converters.conversion.kinds.kind import PlannedOutput
from ggferry.converters.conversion.plan import check_request, plan_conversion
from ggferry.converters.conversion.receipt_options import declared_options
from ggferry.converters.conversion.request import GGUF, NONE, Request, open_source_of, split_mmproj
from ggferry.converters.conversion.run import Approve, Result, convert, source_records
from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.proof.receipt import to_json
from ggferry.converters.rewrite.lineage import load
from ggferry.formats.errors import UsageError
from ggferry.formats.files.digests import Record
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import unrecorded
from ggferry.formats.files.partial_files import write_text
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.parse import parse_json
from ggferry.formats.json_files.text import load_object
from ggferry.service.operations.publish import Publication, PublishRequest, card_of, run, target_of
from ggferry.service.publishing.hub import check_access, holds
from ggferry.service.publishing.outputs import PublishedModel, Upload, name_in_repository
from ggferry.support.progress import Stage, silent
from ggferry.support.records import dataclass

PUBLISHED = ".published.json"
"""Ends the name of the file that stays where an output was removed: which repository has it, under which digests."""


@dataclass(frozen=True, slots=True)
class HubDestination:
    """Where outputs are published.

    Attributes:
        to: hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH.
        create_pr: Whether a pull request is opened instead of a commit to a branch.
        private: Whether a new repository is private, and an existing one must be.
        remove: Whether one output after another is made, published and removed here.
    """

    to: str
    create_pr: bool = False
    private: bool = False
    remove: bool = False

    def request(self, paths: Sequence[str], stage: Stage) -> PublishRequest:
        """Return the request that publishes the files at `paths`."""
        return PublishRequest([*paths], self.to, create_pr=self.create_pr, private=self.private, progress=stage)


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a run has done.

    Attributes:
        results: The outputs that were made.
        publications: The commits; none where an earlier run has published everything.
        kept: Outputs that were made before.
        elsewhere: Outputs that were published and removed before.
        removed: Files that were removed after they were published.
    """

    results: tuple[Result, ...]
    publications: tuple[Publication, ...]
    kept: tuple[str, ...]
    elsewhere: tuple[str, ...]
    removed: tuple[str, ...]


def convert_and_publish(request: Request, to: HubDestination, stage: Stage, approve: Approve) -> Publishing:
    """Convert a model, prove the outputs, and publish them.

    Args:
        request: What to convert, and how.
        to: Where outputs are published.
        stage: Opens a progress display for each phase.
        approve: As for `converters.conversion.run.convert`.

    Raises:
        UsageError: The request is for something that cannot be published, or must be measured first.
        GgferryError: What `convert` and `operations.publish.run` raise. Proved outputs stay, and the next run goes on.
    """
    _check(request, to)
    check_access(target_of(to.request((), stage)))
    check_request(request)
    with unrecorded(), closing(open_source_of(request)) as source:  # `convert` records what it reads
        outputs = plan_conversion(request, source).outputs
        texts, _ = split_mmproj(outputs, _kind_name)
        earlier = _Earlier(request, to)
        elsewhere = [output for output in texts if earlier.published(output)]
        left = [output for output in texts if output not in elsewhere]
        kept = [output for output in left if earlier.made(output)]
    one_by_one = to.remove and all(output.kind.name == GGUF for output in texts)
    groups = [[output] for output in left] if one_by_one else [left] if left else []
    results: list[Result] = []
    publications: list[Publication] = []
    removed: list[str] = []
    for group in groups:
        missing = [output for output in group if output not in kept]
        if missing:
            results += convert(_request_for(request, missing, outputs), stage, approve)
        with unrecorded():  # what was read of outputs is not a source of the next
            done = run(to.request([output.paths[0] for output in group], stage))
        publications.append(done)
        if to.remove:
            removed += [path for output in group for path in _remove(output, outputs, done)]
    return Publishing(tuple(results), tuple(publications), _first(kept), _first(elsewhere), tuple(removed))


def planned_card(outputs: Sequence[PlannedOutput], to: HubDestination, stage: Stage) -> Publication:
    """Return what would be published of planned outputs, with the card as far as it is known before the proof."""
    return card_of(to.request((), stage), [_planned_model(output) for output in outputs])


def _check(request: Request, to: HubDestination) -> None:
    if to.create_pr and to.remove:
        commits = "--remove-published, which commits each alone"
        raise UsageError("--create-pr: one request has all outputs", found=commits)
    if request.to != "gguf":
        raise UsageError("--publish: only GGUF files are published", found=f"--to {request.to}")
    if request.level == "none":
        raise UsageError("--publish: only what is proved is published", found="--verify none")
    if request.target_size is not None or request.target_bpw is not None:
        hint = "convert first, then `ggferry publish`"
        raise UsageError("--publish: types are chosen by measuring", found="--target-size or --target-bpw", hint=hint)


def _kind_name(output: PlannedOutput) -> str:
    return output.kind.name


def _first(outputs: Sequence[PlannedOutput]) -> tuple[str, ...]:
    return tuple(output.paths[0] for output in outputs)


def _request_for(request: Request, some: Sequence[PlannedOutput], outputs: Sequence[PlannedOutput]) -> Request:
    """Return the request for some of the text outputs; the mmproj file is made with the first."""
    texts, mmproj = split_mmproj(outputs, _kind_name)
    if len(some) == len(texts):
        return request
    options = replace(request.options, outtype=",".join(output.request.options.outtype for output in some))
    request = replace(request, options=options)
    if mmproj is None or some[0] is not texts[0]:
        return replace(request, mmproj=NONE)
    return replace(request, mmproj_outtype=mmproj.request.options.outtype, mmproj_out=mmproj.paths[0])


class _Earlier:
    """What runs before this one have left: it is asked of receipts, the source and the Hub."""

    def __init__(self, request: Request, to: HubDestination) -> None:
        self._request, self._target = request, target_of(to.request((), silent))
        self._source: dict[int, Record] = {}

    def made(self, output: PlannedOutput) -> bool:
        """Return whether the files are there that this output's receipt describes."""
        receipt = self._receipt(output)
        if receipt is None:
            return False
        sizes = [os.path.getsize(path) if os.path.isfile(path) else -1 for path in output.paths]
        return sizes == [file["bytes"] for file in receipt["output"]["files"]]

    def published(self, output: PlannedOutput) -> bool:
        """Return whether the Hub still has this output, which is not here."""
        place = output.paths[0] + PUBLISHED
        if os.path.lexists(output.paths[0]) or not os.path.lexists(place) or self._receipt(output) is None:
            return False
        record = load_object(Named(place))
        files = record.get("files")
        if record.get("repository") != self._target.repository or not isinstance(files, list):
            return False
        digests = {str(file["name"]): str(file["sha256"]) for file in files if {"name", "sha256"} <= {*file}}
        return bool(digests) and holds(self._target, digests)

    def _receipt(self, output: PlannedOutput) -> JSONObject | None:
        """Return the receipt of an output if this conversion would write it: of this source, with these options."""
        receipt = load(output.paths[0] + RECEIPT)
        if self._request.force or receipt is None or receipt["ggferry"] != ggferry.__version__:
            return None
        if receipt.get("edits") or receipt.get("verified") not in ("fast", "full"):
            return None
        adapter = bool(getattr(output.kind, "of_adapters", False))
        options = parse_json(to_json(declared_options(output.request, adapter=adapter)).encode(), output.paths[0])
        if {**options, "verify": None} != {**receipt["options"], "verify": None}:
            return None
        source = source_records(output, self._source)
        same = [file["blake3"] for file in receipt["source"]["files"]] == [file["blake3"] for file in source]
        return receipt if same else None


def _remove(output: PlannedOutput, outputs: Sequence[PlannedOutput], done: Publication) -> list[str]:
    """Remove the files of an output that the Hub has confirmed; its receipt stays, and a file that names the place."""
    texts, mmproj = split_mmproj(outputs, _kind_name)
    paths = [*output.paths, *(mmproj.paths if mmproj is not None and output is texts[0] else ())]
    names = {name_in_repository(path) for path in paths}
    files = [asdict(file) for file in done.files if file.name in names]
    if len(files) != len(paths):
        return []
    record = {"repository": done.repository, "commit": done.commit, "url": done.url, "files": files}
    write_text(output.paths[0] + PUBLISHED, [to_json(record)], overwrite=True)
    for path in paths:
        os.unlink(path)
    return paths


def _planned_model(output: PlannedOutput) -> PublishedModel:
    plan = plan_in(output)
    elements = sum(prod(step.node.shape) for step in plan.steps)
    files = [
        Upload(name_in_repository(path), layout.size, "", path)
        for path, layout in zip(output.paths, plan.layouts, strict=True)
    ]
    metadata: dict[str, Any] = {key: entry.value.data for key, entry in plan.metadata.items()}
    bits = 8 * sum(step.nbytes for step in plan.steps)
    name = files[0].name
    return PublishedModel(name, tuple(files), None, None, metadata, bits / elements if elements else 0.0, planned=True)
