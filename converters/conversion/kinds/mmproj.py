"""The mmproj file of a multimodal model, and what it and the text model leave to each other.

Its name and its place are llama.cpp's: `mmproj-…`, beside the text model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ggferry.converters.conversion.kinds.gguf import GgufKind, mmproj_hparams, plan_in
from ggferry.converters.conversion.kinds.gguf_plan import plan_of
from ggferry.converters.conversion.kinds.kept_models import Understood
from ggferry.converters.conversion.kinds.kind import PlannedOutput
from ggferry.converters.conversion.request import BOTH, MMPROJ, ONLY, OutputSpec, Request
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.model_graph.graph import ModelGraph, losses
from ggferry.converters.projectors._unread import UNREAD
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand_projector
from ggferry.converters.write.output_files import OutputSet
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import PROCESSORS
from ggferry.formats.errors import GgferryError, MissingError, UnsupportedError, UsageError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.memory_cap import limited
from ggferry.formats.reader import Kind, kind_of

_PARTS = (
    "vision_config",
    "audio_config",
    "vision_encoder",
    "audio_encoder",
    "speech_config",
    "encoder_config",
    "thinker_config",
    "sound_config",
)


class MmprojKind(GgufKind):
    """The mmproj file."""

    name = MMPROJ

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Return the mmproj file; nothing where the model has no vision or audio encoder that is read.

        Raises UsageError where it alone is asked for and cannot be made, and what `mmproj_plan` raises, with the way
        to the text model.
        """
        requests = [mmproj_request(request, spec) for spec in specs]
        try:
            plans = [(one, mmproj_plan(one, checkpoint)) for one in requests]
        except GgferryError as error:
            if request.mmproj == BOTH:
                alone = "--mmproj none writes the text model alone"
                error.hint = f"{error.hint}; {alone}" if error.hint else alone
            raise
        if request.mmproj == ONLY and any(plan is None for _, plan in plans):
            raise UsageError(f"--mmproj only: {why_none(checkpoint)}", path=checkpoint.path)
        return [self._planned(one, plan, None) for one, plan in plans if plan is not None]

    def target(
        self, output: PlannedOutput, sources: Mapping[Identity, str], same: bool
    ) -> AbstractContextManager[OutputSet]:
        """Claim the names; the same file may exist already, as text models of other types share it."""
        return super().target(output, sources, same=True)

    def _with_others(self, found: Sequence[Proof], opened: Sequence[Checkpoint], beside: Beside) -> list[Proof]:
        """Return the proofs with what other libraries read of the source; an mmproj file has no chat template."""
        return [replace(proof, second_reader=beside.reading()) for proof in found]


def mmproj_request(request: Request, spec: OutputSpec) -> Request:
    """Return the request for the mmproj file: what chooses and lays out the text model's tensors is not for it."""
    plain = replace(
        request.options,
        outtype=spec.outtype,
        recipe_text=None,
        output_tensor_type=None,
        token_embedding_type=None,
        tensor_types=(),
        leave_output_tensor=False,
        vocab_only=False,
        split_max_tensors=0,
        split_max_size=0,
        keep_split=False,
    )
    return replace(
        request,
        options=plain,
        hparams=mmproj_hparams(request),
        vocab=VocabOptions(),
        imatrix=None,
        witness=(),
        text=None,
        mtp=False,
        mtp_only=False,
        fuse_qkv=False,
        out=spec.out,
        out_paths=(),
        mmproj=ONLY,
        mmproj_outtype=spec.outtype,
    )


def mmproj_plan(request: Request, checkpoint: Checkpoint) -> Plan | None:
    """Return the plan of the mmproj file; None where there is none to write.

    `request` is as `mmproj_request` returns it. Raises one of `formats.errors`.
    """
    with limited(checkpoint.path):
        graph = _stored(checkpoint) or understand_projector(checkpoint, request.hparams)
        return None if graph is None else plan_of(request, Understood(graph, None, None))


def _stored(checkpoint: Checkpoint) -> ModelGraph | None:
    """Return the mmproj file that a store keeps with a GGUF file, as Ollama does, bound; None where there is none."""
    path = checkpoint.sidecars.get(MMPROJ)
    return None if path is None else graph_of(Named(path))


def missing_processor(request: Request, checkpoint: Checkpoint, error: GgferryError) -> str | None:
    """Return the note for a folder that was copied without the settings of its processor; None for another error.

    Such a folder still has its text model.
    """
    left_out = not mmproj_hparams(request) and not PROCESSORS & checkpoint.sidecars.keys()
    if request.mmproj == BOTH and isinstance(error, MissingError) and left_out:
        return f"no mmproj file is written: there is no preprocessor_config.json, and {error.message}"
    return None


def instead_of_text(
    planned: Sequence[PlannedOutput], checkpoint: Checkpoint, error: UnsupportedError
) -> list[PlannedOutput]:
    """Return the mmproj file alone where it holds all of a checkpoint whose text model is not read (Ultravox).

    Nothing where there is no such file; where it holds a part, `error` is given the hint that it can be had.
    """
    for output in planned:
        plan = plan_in(output)
        taken = {ref.name for node in plan.graph.nodes for ref in node.inputs}
        if not checkpoint.tensors.keys() - taken:
            note = f"no text model is written: {error.message}"
            return [replace(output, plan=replace(plan, notes=(*plan.notes, note)))]
        error.hint = "--mmproj only writes the vision or audio encoder"
    return []


def why_none(checkpoint: Checkpoint) -> str:
    """Return why no mmproj file is made."""
    return unread(checkpoint) or "the model has no vision or audio encoder"


def unread(checkpoint: Checkpoint) -> str:
    """Return why no mmproj file is made of a multimodal model; '' for a text model."""
    config = checkpoint.metadata if kind_of(checkpoint.container) is Kind.TRAINING else {}
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "this model"
    if name in UNREAD:
        return f"no mmproj file is written of {name}: {UNREAD[name]}"
    if not any(isinstance(config.get(part), Mapping) for part in _PARTS):
        return ""
    return f"no mmproj file is written: no table reads the projector of {name}, or the checkpoint holds none"


def related(plan: Plan, other: Plan, name: str) -> Plan:
    """Return the plan with what it leaves to the other file, called `name`, distinguished from what is lost."""
    taken = {ref.name for node in other.graph.nodes for ref in node.inputs}
    graph = plan.graph
    dropped = tuple(
        replace(drop, elsewhere=True, reason=f"in the other file, {name}") if drop.ref.name in taken else drop
        for drop in graph.dropped
    )
    return replace(plan, graph=_with_dropped(graph, dropped))


def _with_dropped(graph: ModelGraph, dropped: Sequence[Any]) -> ModelGraph:
    """Return the graph with these dropped tensors, and notes on what is lost of them."""
    before = {loss.note for loss in losses(graph.dropped)}
    notes = (*(note for note in graph.notes if note not in before), *(loss.note for loss in losses(dropped)))
    return replace(graph, dropped=tuple(dropped), notes=notes)
