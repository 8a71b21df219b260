"""Plan GGUF files: understand the source once, and decide for every file what happens to each tensor and key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from ggferry.converters.conversion.draft_target import check_target
from ggferry.converters.conversion.kinds import kept_models
from ggferry.converters.conversion.kinds.kept_models import Planned, Understood
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.output_metadata import MODEL, Described, assemble, describe
from ggferry.converters.conversion_plan.steps import Plan, Step, place, plan_steps
from ggferry.converters.metadata.general_keys import Entry
from ggferry.converters.model_graph.gguf_edits import override_keys, prune_layers
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.prune_experts import explicit_choice, prune_experts
from ggferry.converters.proof.reference_checked import unchecked
from ggferry.converters.proof.runtime_keys import architectures, loader, version
from ggferry.converters.proof.runtime_notes import explains, runtime_notes
from ggferry.converters.reranking.recognize import with_template
from ggferry.converters.schema.fused_attention import MATRIX
from ggferry.converters.tokenizers.legacy.ids_alone import NO_MODEL
from ggferry.converters.tokenizers.llama_cpp_limits import differences, is_called_phi3, objections
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.converters.write.feedback_pass import calibration_chunks
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.files.named_texts import text_of
from ggferry.formats.gguf.header_layout import GGUFLayout, with_values
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.formats.imatrix.read import read_imatrix
from ggferry.quant.types import FEEDBACK, SEARCH


def understood(request: Request, checkpoint: Checkpoint) -> Understood:
    """Return what is known of a source. Raises one of `formats.errors`.

    While an archive is planned, what is known of a model of the same content serves again (`kept_models`).
    """
    content = kept_models.content_of(checkpoint, request)
    if content is not None and (known := kept_models.of(content, checkpoint)) is not None:
        return known
    found = _understood(request, checkpoint)
    if content is not None and content == kept_models.content_of(checkpoint, request):  # nobody has written meanwhile
        kept_models.keep(content, found, checkpoint)
    return found


def _understood(request: Request, checkpoint: Checkpoint) -> Understood:
    checkpoint, imatrix = edited(request, checkpoint, imatrix_of(request))
    graph = understand(
        checkpoint,
        request.hparams,
        request.options.vocab_only,
        mtp=request.mtp,
        rerank=request.rerank,
        fuse_qkv=request.fuse_qkv,
        mtp_only=request.mtp_only,
    )
    if request.fuse_qkv:
        _check_fused(graph)
    check_target(graph, request.target, not (request.vocab.none or request.vocab.source))
    tokenizer = tokenizer_of(graph, checkpoint, request)
    return Understood(graph, tokenizer, imatrix)


def _check_fused(graph: ModelGraph) -> None:
    """Raise UsageError where llama.cpp's loader reads no fused tensor of this architecture."""
    name, known = graph.architecture.name, loader(graph.architecture.name)
    if known is None or MATRIX not in known.tensors:
        raise UsageError(f"--fuse-qkv: llama.cpp {version()} reads no attn_qkv of this architecture", found=name)


def tokenizer_of(graph: ModelGraph, checkpoint: Checkpoint, request: Request) -> Tokenizer | None:
    """Return the vocabulary of a source; a vision or audio encoder has none, nor a model of codes."""
    if graph.architecture.projector or graph.sizes.get("no_vocabulary"):
        return None
    return with_template(graph, load_tokenizer(checkpoint, graph.sizes.get("n_vocab", 0), request.vocab))


def plan_of(request: Request, source: Understood) -> Plan:
    """Return the plan of one output of a source that is understood."""
    request_key = kept_models.request_key(request)
    former = source.plans.get(request_key)
    if former is not None and (plan := _renamed(request, source, former)) is not None:
        return plan
    graph, tokenizer, imatrix = source.graph, source.tokenizer, source.imatrix
    steps = plan_steps(graph, request.options, imatrix)
    described = describe(graph, steps, tokenizer, request.options)
    metadata, named = _assembled(request, source, steps, described)
    placed, layouts = place(steps, metadata, request.options)
    notes, unloadable = _notes(request, source, steps, metadata, named)
    chunks, corrected = _calibration(request, source)
    notes += corrected + _searched(request, imatrix)
    plan = Plan(graph, request.options, metadata, placed, layouts, imatrix, named + notes, unloadable, chunks)
    source.plans[request_key] = Planned(plan, notes, described)
    return plan


def _calibration(request: Request, source: Understood) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Return the text by which values are rounded with feedback, as token ids, and a note on it; nothing without one.

    Raises RefusedError where it is missing, and UsageError where nothing is rounded by it.
    """
    path, graph = request.calibration, source.graph
    if (request.options.rounding == FEEDBACK) != (path is not None):
        if path is not None:
            raise UsageError(
                "--calibration goes with --rounding feedback or --target-size", found=request.options.rounding
            )
        why = "--rounding feedback goes by what the model computes on a text"
        raise RefusedError(why, path=graph.checkpoint.path, hint="--calibration FILE")
    if path is None or request.options.vocab_only:
        return (), ()
    text = text_of(path)
    chunks = calibration_chunks(graph, source.tokenizer, text)
    return chunks, (f"rounded with feedback by {tokens_of(path, text, chunks)}, where a type has levels",)


def _searched(request: Request, imatrix: Imatrix | None) -> tuple[str, ...]:
    """Return a note where `--rounding search` has half of what it goes by."""
    if (
        request.options.rounding != SEARCH
        or imatrix is None
        or any(e.plain is not None for e in imatrix.entries.values())
    ):
        return ()
    return (
        f"{os.path.basename(imatrix.path)} has no means of inputs (in_sum), which `ggferry imatrix` writes: --rounding "
        "search chose scales by it, and errors of earlier columns are not corrected by later ones",
    )


def tokens_of(path: str, text: str, chunks: Sequence[Sequence[int]]) -> str:
    """Return in words how much of which text was read: a receipt or a recipe names it so."""
    from blake3 import blake3

    count, digest = sum(map(len, chunks)), blake3(text.encode()).hexdigest()
    return f"{count:,} tokens of {os.path.basename(path)} (BLAKE3 {digest})"


def _renamed(request: Request, source: Understood, former: Planned) -> Plan | None:
    """Return the plan of a model of the same content that has another name; None where the name changes other things.

    These are the place of the data, and what llama.cpp makes of the model.
    """
    plan = former.plan
    metadata, named = _assembled(request, source, plan.steps, former.described)
    if metadata != plan.metadata:
        if len(plan.layouts) > 1 or explains(named) or _looked_at(metadata) != _looked_at(plan.metadata):
            return None
        before, after = ({key: entry.value for key, entry in each.items()} for each in (plan.metadata, metadata))
        first = plan.layouts[0]
        layout = with_values(first, before, after) if isinstance(first, GGUFLayout) else None
        if layout is None:
            return None
        plan = replace(plan, metadata=metadata, layouts=(layout,))
    return replace(plan, graph=source.graph, notes=named + former.notes)


def _assembled(
    request: Request, source: Understood, steps: Sequence[Step], described: Described
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Return the keys of an output, and notes on how it is named."""
    graph, tokenizer, options = source.graph, source.tokenizer, request.options
    metadata, named = assemble(graph, steps, tokenizer, options, request.model_name, request.metadata, described)
    if source.imatrix is not None:
        metadata |= {key: Entry(value, "--imatrix") for key, value in source.imatrix.quantize_keys().items()}
    return metadata, named


def _looked_at(metadata: Mapping[str, Entry]) -> tuple[object, ...]:
    """Return what the notes on an output depend on of those of its keys that its name decides."""
    kind, name = (metadata.get(f"general.{key}") for key in ("type", "name"))
    return kind and kind.value.data, name is not None and is_called_phi3(name.value.data)


def _notes(
    request: Request, source: Understood, steps: Sequence[Step], metadata: Mapping[str, Entry], named: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the user should know of an output besides how it is named, and why llama.cpp would not load it."""
    graph, tokenizer = source.graph, source.tokenizer
    notes = tokenizer.notes if tokenizer else _without_vocabulary(graph)
    loadable = graph.architecture.name in architectures()  # else `runtime_notes` says so
    if graph.nodes and graph.dialect.name != "gguf" and not graph.runtimes and loadable:
        notes += (f"no runtime is known to run this {graph.architecture.name} model from GGUF",)
    ragged = [step for step in steps if step.ragged]
    if ragged:
        became = ", ".join(dict.fromkeys(f"{step.type}" for step in ragged))
        notes += (
            f"{len(ragged)} of {len(steps)} tensors became {became}: their rows are not whole blocks of the type they "
            "were to have (--dry-run and the receipt name them)",
        )
    unloadable: tuple[str, ...] = ()
    if request.options.alignment % 32:  # TENSOR_ALIGNMENT in ggml-backend.cpp, asserted for mapped files
        unloadable = (
            f"llama.cpp would not load this file: alignment {request.options.alignment} is not a multiple of 32",
        )
    textless = graph.architecture.projector or (MODEL in metadata and metadata[MODEL].value.data == NO_MODEL)
    if tokenizer is None and "llama.cpp" in graph.runtimes and steps and not textless:
        unloadable += ("llama.cpp would not load this file: it has no vocabulary",)
    if tokenizer is not None:
        name = metadata["general.name"].value.data if "general.name" in metadata else ""
        unloadable += tuple(f"llama.cpp would not load this vocabulary: {why}" for why in objections(tokenizer, name))
        notes += differences(tokenizer)
    notes += unloadable
    notes += runtime_notes(
        graph.architecture.name,
        {key: entry.value for key, entry in metadata.items()},
        [step.name for step in steps],
        (*graph.notes, *named, *notes),
        vocab_only=request.options.vocab_only,
    )
    notes += unchecked(graph)
    return notes, unloadable


def _without_vocabulary(graph: ModelGraph) -> tuple[str, ...]:
    return () if graph.architecture.projector else ("no vocabulary: the output has no tokenizer",)


def imatrix_of(request: Request) -> Imatrix | None:
    """Open the importance matrix that a request names, None where it names none; the caller closes it."""
    if not request.imatrix:
        return None
    return read_imatrix(request.imatrix, request.include_weights, request.exclude_weights)


def with_explicit_experts(request: Request, checkpoint: Checkpoint) -> Request:
    """Return the request with the experts that `--prune-experts` drops by their numbers, as the receipt has them."""
    if not request.prune_experts or checkpoint.container != "gguf":
        return request
    with imatrix_of(request) or nullcontext() as imatrix:
        return replace(request, prune_experts=explicit_choice(checkpoint, request.prune_experts, imatrix))


def edited(request: Request, checkpoint: Checkpoint, imatrix: Imatrix | None) -> tuple[Checkpoint, Imatrix | None]:
    """Return the checkpoint with overridden keys, without pruned experts and blocks, and the matrix of what is left.

    Blocks and experts have their numbers in the source. Raises UsageError for a checkpoint that is not GGUF.
    """
    if not (request.override_keys or request.prune or request.prune_experts):
        return checkpoint, imatrix
    if checkpoint.container != "gguf":
        raise UsageError("keys are overridden, blocks and experts pruned in GGUF files only", path=checkpoint.path)
    checkpoint = override_keys(checkpoint, request.override_keys)
    if request.prune_experts:
        pruned = prune_experts(checkpoint, request.prune_experts, imatrix)
        checkpoint = replace(pruned.checkpoint, notes=(*pruned.checkpoint.notes, pruned.note))
        imatrix = imatrix and imatrix.of_experts(pruned.kept)
    if request.prune:
        checkpoint, names = prune_layers(checkpoint, request.prune)
        imatrix = imatrix and imatrix.renamed(names)
    return checkpoint, imatrix
