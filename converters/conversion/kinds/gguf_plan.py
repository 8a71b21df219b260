"""Plan GGUF files: understand the source once, and decide for every file what happens to each tensor and key."""

from __future__ import annotations

from collections.abc import Mapping

from ggferry.converters.conversion.draft_target import check_target
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.output_metadata import assemble
from ggferry.converters.conversion_plan.steps import Plan, place, plan_steps
from ggferry.converters.metadata.general_keys import Entry
from ggferry.converters.model_graph.gguf_edits import override_keys, prune_layers
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.reference_checked import unchecked
from ggferry.converters.proof.runtime_keys import architectures
from ggferry.converters.proof.runtime_notes import runtime_notes
from ggferry.converters.reranking.recognize import with_template
from ggferry.converters.tokenizers.llama_cpp_limits import differences, objections
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError
from ggferry.formats.imatrix import Imatrix, read_imatrix
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Understood:
    """What is known of a source before types are chosen: the same for every output that is made of it.

    Attributes:
        graph: The model.
        tokenizer: Its vocabulary, if any.
        imatrix: The importance matrix, if any, under the names of the graph.
    """

    graph: ModelGraph
    tokenizer: Tokenizer | None
    imatrix: Imatrix | None


def understood(request: Request, checkpoint: Checkpoint) -> Understood:
    """Return what is known of a source. Raises one of `formats.errors`."""
    checkpoint, renamed = edited(request, checkpoint)
    graph = understand(checkpoint, request.hparams, request.options.vocab_only, mtp=request.mtp, rerank=request.rerank)
    check_target(graph, request.target, not (request.vocab.none or request.vocab.source))
    tokenizer = tokenizer_of(graph, checkpoint, request)
    imatrix = None
    if request.imatrix:
        imatrix = read_imatrix(request.imatrix, request.include_weights, request.exclude_weights).renamed(renamed)
    return Understood(graph, tokenizer, imatrix)


def tokenizer_of(graph: ModelGraph, checkpoint: Checkpoint, request: Request) -> Tokenizer | None:
    """Return the vocabulary of a source; a vision or audio encoder has none."""
    if graph.architecture.projector:
        return None
    return with_template(graph, load_tokenizer(checkpoint, graph.sizes.get("n_vocab", 0), request.vocab))


def plan_of(request: Request, source: Understood) -> Plan:
    """Return the plan of one output of a source that is understood."""
    graph, tokenizer, imatrix = source.graph, source.tokenizer, source.imatrix
    steps = plan_steps(graph, request.options, imatrix)
    metadata, notes = assemble(graph, steps, tokenizer, request.options, request.model_name, request.metadata)
    if imatrix is not None:
        metadata |= {key: Entry(value, "--imatrix") for key, value in imatrix.quantize_keys().items()}
    placed, layouts = place(steps, metadata, request.options)
    notes += tokenizer.notes if tokenizer else _without_vocabulary(graph)
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
    if tokenizer is None and "llama.cpp" in graph.runtimes and steps and not graph.architecture.projector:
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
        (*graph.notes, *notes),
        vocab_only=request.options.vocab_only,
    )
    notes += unchecked(graph)
    return Plan(graph, request.options, metadata, placed, layouts, imatrix, notes, unloadable)


def _without_vocabulary(graph: ModelGraph) -> tuple[str, ...]:
    return () if graph.architecture.projector else ("no vocabulary: the output has no tokenizer",)


def edited(request: Request, checkpoint: Checkpoint) -> tuple[Checkpoint, Mapping[str, str]]:
    """Return the checkpoint with overridden keys and without pruned blocks, and its tensors' new names → old ones.

    Raises UsageError for a checkpoint that is not GGUF.
    """
    if not (request.override_keys or request.prune):
        return checkpoint, {}
    if checkpoint.container != "gguf":
        raise UsageError("keys are overridden and blocks pruned in GGUF files only", path=checkpoint.path)
    checkpoint = override_keys(checkpoint, request.override_keys)
    return prune_layers(checkpoint, request.prune) if request.prune else (checkpoint, {})
