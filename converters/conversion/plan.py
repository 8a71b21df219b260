"""What is written of one source together: text models of several types, and the file of what sees and hears."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ggferry.converters.adapters.plan import AdapterPlan
from ggferry.converters.conversion.mmproj import (
    BOTH,
    NONE,
    ONLY,
    first_request,
    instead_of_text,
    related,
    require_second,
    second_plan,
    second_request,
    unread,
)
from ggferry.converters.conversion.plan import make_plans
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.metadata.file_names import shard_label
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import PROCESSORS
from ggferry.formats.errors import GgferryError, MissingError, UnsupportedError, UsageError
from ggferry.quant.marks import Marks
from ggferry.support.records import dataclass

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Rung:
    """One of the outputs that are made of a source together.

    Attributes:
        request: What was asked for.
        plan: What happens to every tensor.
        tokenizer: The source's.
        paths: The output's files.
        marks: Of what was encoded, once it was written.
    """

    request: Request
    plan: Plan
    tokenizer: Tokenizer | None
    paths: tuple[str, ...]
    marks: Marks | None = None

    @property
    def is_second(self) -> bool:
        """Whether it is the file of what sees and hears."""
        return bool(self.plan.graph.architecture.projector)


def rungs_of(requests: Sequence[Request], checkpoint: Checkpoint) -> list[Rung]:
    """Return what is to be written: the text models, and last the file of what sees and hears, where there is one."""
    first, rungs = requests[0], []
    asked, wanted = second_request(first), first.mmproj != NONE and not first.options.vocab_only
    texts = [first_request(request) for request in requests] if first.mmproj != ONLY else []
    try:
        for request, (plan, tokenizer) in zip(texts, make_plans(texts, checkpoint) if texts else (), strict=True):
            rungs.append(Rung(request, plan, tokenizer, tuple(_targets(request, plan))))
        second, why = _second_plan(first, asked, checkpoint) if wanted else (None, "")
    except UnsupportedError as error:
        second = instead_of_text(asked, checkpoint, error) if wanted and texts and not rungs else None
        if second is None:
            raise
    if first.mmproj == ONLY:
        second = require_second(second, checkpoint)
    if second is None:
        return [_noted(rung, why) for rung in rungs] if why else rungs
    paths = tuple(_targets(asked, second))
    beside = [replace(rung, plan=related(rung.plan, second, os.path.basename(paths[0]))) for rung in rungs]
    if rungs:
        second = related(second, rungs[0].plan, os.path.basename(rungs[0].paths[0]))
    return [*beside, Rung(asked, second, None, paths)]


def _second_plan(first: Request, asked: Request, checkpoint: Checkpoint) -> tuple[Plan | None, str]:
    """Return the plan of the second file, or None and why there is none; '' where a model neither sees nor hears.

    A folder that was copied without the settings of its processor still has its text model. Raises what `second_plan`
    does, with the way to that text model.
    """
    try:
        plan = second_plan(asked, checkpoint)
        return plan, unread(checkpoint) if plan is None else ""
    except GgferryError as error:
        if first.mmproj == BOTH:
            left_out = not asked.hparams and not PROCESSORS & checkpoint.sidecars.keys()
            if isinstance(error, MissingError) and left_out:
                return None, f"no mmproj file is written: there is no preprocessor_config.json, and {error.message}"
            alone = "--mmproj none writes the text model alone"
            error.hint = f"{error.hint}; {alone}" if error.hint else alone
        raise


def _noted(rung: Rung, note: str) -> Rung:
    return replace(rung, plan=replace(rung.plan, notes=(*rung.plan.notes, note)))


def halves(rungs: Sequence[Rung], of_each: Sequence[Item]) -> list[list[Item]]:
    """Return the items, one of each output, by the tensors it holds: the text models', then what sees and hears."""
    items = list(zip(rungs, of_each, strict=True))
    found = ([item for rung, item in items if rung.is_second is wanted] for wanted in (False, True))
    return [half for half in found if half]


def check_rungs(rungs: Sequence[Rung]) -> None:
    """Raise UsageError for outputs that cannot be made together."""
    check_kinds(rungs)
    names = [path for rung in rungs for path in rung.paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "several types, and one name for them", found=twice[0], hint="-o 'model-{outtype}.gguf', or a folder"
        )


def check_kinds(rungs: Sequence[Rung]) -> None:
    """Raise UsageError for a source that is written in one type at a time."""
    if rungs[1:] and isinstance(rungs[0].plan, AdapterPlan):
        hint = "give one --outtype, or the adapter a run of its own"
        raise UsageError("an adapter is written in one type at a time", path=rungs[0].request.source, hint=hint)


def _targets(request: Request, plan: Plan) -> list[str]:
    """Return the paths of the output files.

    They are as the request names them, or else follow the naming convention, in the folder it names or that of the
    source.
    """
    out, count = request.out, len(plan.layouts)
    labels = [shard_label(number, count) for number in range(1, count + 1)] if count > 1 else [None]
    if out is None or os.path.isdir(out):
        folder = out or os.path.dirname(os.path.abspath(request.source))
        return [os.path.join(folder, output_name(plan.metadata, plan.options, label)) for label in labels]
    return [f"{out.removesuffix('.gguf')}-{label}.gguf" if label else out for label in labels]
