"""The second file of a model that also sees or hears (mmproj): its request, its plan, what either leaves to the other.

Its name and its place are llama.cpp's: `mmproj-…`, beside the text model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.conversion.plan import Understood, plan_of
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.metadata.beside import second_name
from ggferry.converters.model_graph.graph import ModelGraph, losses
from ggferry.converters.projectors._unread import UNREAD
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import understand_projector
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError, UsageError
from ggferry.formats.memory_cap import limited
from ggferry.formats.reader import Kind, kind_of

BOTH, ONLY, NONE = "both", "only", "none"
PLACE = "{outtype}"
"""Stands for the type in the name of an output."""
_CLIP = "clip."
_PARTS = (
    "vision_config", "audio_config", "vision_encoder", "audio_encoder", "speech_config", "encoder_config",
    "thinker_config", "sound_config",
)  # fmt: skip


def second_request(request: Request) -> Request:
    """Return the request for the second file: what chooses and lays out the text model's tensors is not for it."""
    outtype = second_outtype(request)
    options = request.options
    plain = replace(
        options, outtype=outtype, recipe_text=None, output_tensor_type=None, token_embedding_type=None,
        tensor_types=(), leave_output_tensor=False, vocab_only=False, split_max_tensors=0, split_max_size=0,
        keep_split=False,
    )  # fmt: skip
    hparams = {key: text for key, text in request.hparams.items() if key.startswith(_CLIP)}
    return replace(
        request, options=plain, hparams=hparams, vocab=VocabOptions(), imatrix=None, witness=(), text=None, mtp=False,
        out=request.mmproj_out or second_out(request.out, request), mmproj=ONLY, mmproj_outtype=outtype,
    )  # fmt: skip


def first_request(request: Request) -> Request:
    """Return the request for the text model's file."""
    return replace(request, hparams={key: text for key, text in request.hparams.items() if not key.startswith(_CLIP)})


def second_outtype(request: Request) -> str:
    """Return the type of a second file: as asked for, the text model's where that is a float, else f16."""
    outtype = request.options.outtype
    return request.mmproj_outtype or (outtype if outtype.lower() in ("keep", "f32", "f16", "bf16") else "f16")


def second_out(out: str | None, request: Request) -> str | None:
    """Return the name of a second file beside a text model called `out`: in a folder it gets its own.

    Where the text model's name ends in its type, that of the second file ends in its own.
    """
    if out is None or os.path.isdir(out):
        return out
    folder, name = os.path.split(out)
    own = second_outtype(request)
    if PLACE not in name:
        ending = re.compile(rf"(?<=[-._]){re.escape(request.options.outtype)}(?=\.gguf$)", re.IGNORECASE)
        own_too = own.upper() if (found := ending.search(name)) and found[0].isupper() else own
        name = ending.sub(own_too, name)
    return os.path.join(folder, second_name(name.replace(PLACE, own)))


def second_plan(request: Request, checkpoint: Checkpoint) -> Plan | None:
    """Return the plan of the second file; None where there is none to write.

    `request` is as `second_request` returns it. Raises one of `formats.errors`.
    """
    with limited(checkpoint.path):
        graph = understand_projector(checkpoint, request.hparams)
        return None if graph is None else plan_of(request, Understood(graph, None, None))


def instead_of_text(request: Request, checkpoint: Checkpoint, error: UnsupportedError) -> Plan | None:
    """Return the plan of the second file where it holds all of a checkpoint whose text model is not read (Ultravox).

    None where there is no such file; where it holds a part, `error` is given the hint that it can be had.
    """
    plan = second_plan(request, checkpoint)
    if plan is None:
        return None
    taken = {ref.name for node in plan.graph.nodes for ref in node.inputs}
    if not checkpoint.tensors.keys() - taken:
        return replace(plan, notes=(*plan.notes, f"no text model is written: {error.message}"))
    error.hint = "--mmproj only writes the half that sees or hears"
    return None


def require_second(plan: Plan | None, checkpoint: Checkpoint) -> Plan:
    """Return the plan. Raises UsageError where `--mmproj only` asks for a file that cannot be made."""
    if plan is None:
        why = unread(checkpoint) or "the model neither sees nor hears"
        raise UsageError(f"--mmproj only: {why}", path=checkpoint.path)
    return plan


def unread(checkpoint: Checkpoint) -> str:
    """Return why no second file is made of a model that also sees or hears; '' where it does neither."""
    config = checkpoint.metadata if kind_of(checkpoint.container) is Kind.TRAINING else {}
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "this model"
    if name in UNREAD:
        return f"no mmproj file is written of {name}: {UNREAD[name]}"
    if not any(isinstance(config.get(part), Mapping) for part in _PARTS):
        return ""
    return f"no mmproj file is written: no table reads the projector of {name}, or the checkpoint holds none"


def related(plan: Plan, other: Plan, name: str) -> Plan:
    """Return the plan with what it leaves to the other file, called `name`, told apart from what is lost."""
    taken = {ref.name for node in other.graph.nodes for ref in node.inputs}
    graph = plan.graph
    dropped = tuple(
        replace(drop, elsewhere=True, reason=f"in the other file, {name}") if drop.ref.name in taken else drop
        for drop in graph.dropped
    )
    return replace(plan, graph=_told_again(graph, dropped))


def _told_again(graph: ModelGraph, dropped: Sequence[Any]) -> ModelGraph:
    """Return the graph with these dropped tensors, and notes on what is lost of them."""
    before = {loss.note for loss in losses(graph.dropped)}
    notes = (*(note for note in graph.notes if note not in before), *(loss.note for loss in losses(dropped)))
    return replace(graph, dropped=tuple(dropped), notes=notes)
