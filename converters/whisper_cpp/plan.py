"""The plan of a whisper.cpp file: its header, its vocabulary, and the place of every tensor."""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.architectures.whisper import HEADER
from ggferry.converters.conversion_plan.steps import Options, Plan, steps_of_types
from ggferry.converters.hf_export.config import all_values
from ggferry.converters.hf_export.source_tensors import SourceTensor, source_tensors
from ggferry.converters.metadata.general_keys import Entry
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known, Param
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.whisper_cpp.file_types import ftype_of, types_in_file
from ggferry.converters.whisper_cpp.vocabulary import START, special_ids, tokens_in_file
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import PREPROCESSOR, with_preprocessor
from ggferry.formats.errors import UnsupportedError, VerificationError
from ggferry.formats.ggml.write import Declared, lay_out
from ggferry.formats.gguf.values import u32

LAYOUT = HEADER.name
DIALECT = "ggml"
"""That of the table whose names whisper.cpp's files have."""
RECORDINGS = {"sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "chunk_length": 30}
"""What preprocessor_config.json says of every Whisper, and whisper.cpp has in its code (whisper.h)."""
AS_F32 = (
    "whisper.cpp 1.8.5 loads an f32 file and ends at its first convolution on a CPU (ggml's im2col takes F16 "
    "alone); its quantize reads it"
)
EPSILON = 1e-5
"""Of all norms, in whisper.cpp's `whisper_hparams`: no file states it."""


def check_architecture(graph: ModelGraph) -> None:
    """Raise UnsupportedError for another model than Whisper."""
    if graph.architecture.name != "whisper":
        raise UnsupportedError(
            "--to whisper.cpp: whisper.cpp runs Whisper models alone",
            path=graph.checkpoint.path,
            found=graph.architecture.display_name,
            hint="--to gguf, which llama.cpp reads",
        )


def check_model(graph: ModelGraph) -> None:
    """Check that whisper.cpp computes this Whisper. Raises UnsupportedError naming the first thing that it does not."""
    sizes, path = graph.sizes, graph.checkpoint.path
    start = special_ids(sizes["n_vocab"], path)[START]
    width, first = sizes["n_embd"], sizes.get("decoder_start")
    audio = with_preprocessor({}, graph.checkpoint.sidecars).get(PREPROCESSOR, {})
    for what, found, expected in (
        ("width of the encoder's feed-forward networks", sizes["n_ff_enc"], 4 * width),
        ("width of the decoder's feed-forward networks", sizes["n_ff"], 4 * width),
        ("layer norm's epsilon", round(sizes["eps"], 12), EPSILON),
        ("first token of a transcript", start if first is None else first, start),
        *((f"{key} of recordings", audio.get(key, value), value) for key, value in RECORDINGS.items()),
        ("feature_size of recordings", audio.get("feature_size", sizes["n_mels"]), sizes["n_mels"]),
    ):
        if found != expected:
            raise UnsupportedError(f"whisper.cpp takes another {what}", path=path, found=found, expected=expected)


def plan_file(graph: ModelGraph, tokenizer: Tokenizer | None, options: Options) -> Plan:
    """Return the plan of the file, without reading tensor data. Raises one of `formats.errors`."""
    check_architecture(graph)
    check_model(graph)
    graph = with_vectors(graph)
    tokens = tokens_in_file(tokenizer, graph.sizes["n_vocab"], graph.checkpoint.path)
    tensors = named_tensors(graph)
    name, types = types_in_file(graph, tensors, options)
    fields, metadata = _header(graph, ftype_of(name))
    ordered = sorted(tensors.items(), key=lambda item: _place(item[1]))
    declared = [Declared(key, one.name, types[key], one.shape) for key, one in ordered]
    matrix = next(one for one in declared if one.name == HEADER.matrix)
    others = [one for one in declared if one is not matrix]
    layout = lay_out(HEADER.header.pack(fields), matrix, tokens, others, graph.checkpoint.path)
    steps = [step.at(0, layout.tensors[step.name].offset) for step in steps_of_types(graph, types)]
    steps.sort(key=lambda step: step.offset)
    notes = (AS_F32,) if name == "f32" else ()
    return Plan(_without_remarks(graph), replace(options, outtype=name), metadata, steps, (layout,), notes=notes)


def named_tensors(graph: ModelGraph) -> dict[str, SourceTensor]:
    """Return the tensors as whisper.cpp's files have them, by the name in the graph."""
    dialect = next(one for one in graph.architecture.dialects if one.name == DIALECT)
    return {one.nodes[0].name: one for one in source_tensors(graph, dialect, all_values(graph, dialect, ""))}


def _place(tensor: SourceTensor) -> tuple[int, int]:
    """Return where a tensor begins in the source, whose order whisper.cpp's scripts and its quantize keep."""
    span = tensor.nodes[0].inputs[0].spans[0]
    return span.file, span.offset


def _header(graph: ModelGraph, ftype: int) -> tuple[dict[str, int], dict[str, Entry]]:
    """Return the fields of the header, and each with its origin."""
    names = {param.fields[DIALECT]: param.name for param in graph.architecture.hparams if DIALECT in param.fields}
    fields = {field: int(graph.sizes[name]) for field, name in names.items()}
    entries = {field: Entry(u32(value), graph.hparams[names[field]].origin) for field, value in fields.items()}
    return {**fields, "ftype": ftype}, {**entries, "ftype": Entry(u32(ftype), "--outtype")}


def _without_remarks(graph: ModelGraph) -> ModelGraph:
    """Return the graph without the notes on what Whisper is in GGUF."""
    remarks = {caveat.text for caveat in graph.architecture.caveats}
    return replace(graph, notes=tuple(note for note in graph.notes if note not in remarks))


def with_vectors(graph: ModelGraph) -> ModelGraph:
    """Return the graph with biases as vectors where the file has them as columns: the same bytes at the same place."""
    nodes = []
    for node in graph.nodes:
        if isinstance(node.layout, Reshape) and len(node.inputs) == 1 and len(node.shape) == 1:
            (ref,) = node.inputs
            spans = tuple(replace(span, shape=node.shape) for span in ref.spans)
            node = replace(node, inputs=(replace(ref, shape=node.shape, spans=spans),), layout=SAME)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), by_name={node.name: node for node in nodes})


def as_run(graph: ModelGraph) -> ModelGraph:
    """Return the graph of a file that was read, with what it does not hold and whisper.cpp takes for every model."""
    implied = {"eps": EPSILON, "decoder_start": special_ids(graph.sizes["n_vocab"], graph.checkpoint.path)[START]}
    params = {name: Param(value, "whisper.cpp's own", Known.DECLARED) for name, value in implied.items()}
    return with_vectors(replace(graph, hparams={**graph.hparams, **params}))


def check_header(plan: Plan, again: Checkpoint) -> None:
    """Raise VerificationError for a file that is not whisper.cpp's, or has another header than planned."""
    if again.layout != LAYOUT:
        raise VerificationError("not a file of whisper.cpp", path=again.path, found=again.layout or again.container)
    for field, entry in plan.metadata.items():
        found = again.header.get(field)
        if found != entry.value.data:
            raise VerificationError(f"{field} differs", path=again.path, found=found, expected=entry.value.data)
