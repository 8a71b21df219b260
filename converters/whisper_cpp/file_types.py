"""The types of a whisper.cpp file: one for all matrices, and what its loader takes for the rest.

Sources: whisper.cpp's `whisper_model_load`, which makes every type of the header's `ftype` before it reads a tensor,
and its `quantize` (docs/formats/whisper-cpp.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from ggferry.converters.conversion_plan.choose_types import KEEP, TypeOptions, check_encoding, choose_types
from ggferry.converters.hf_export.source_tensors import SourceTensor
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.errors import RefusedError, UnsupportedError, UsageError
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError, BlockType

FILE_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
}
"""--outtype → GGML_FTYPE, of what whisper.cpp's scripts and its quantize write."""
QUANTIZED = 2
"""GGML_QNT_VERSION, by 1000 of which quantize raises `ftype`."""
F32, F16 = block_type("F32"), block_type("F16")


def check_name(outtype: str) -> None:
    """Raise UsageError for a type that no program of whisper.cpp's writes."""
    if outtype.lower() not in (KEEP, *FILE_TYPES):
        names = ", ".join((KEEP, *FILE_TYPES))
        raise UsageError("--outtype: no type of whisper.cpp's files", found=outtype, expected=names)


def ftype_of(name: str) -> int:
    """Return the header's `ftype` of a file of this type."""
    number = FILE_TYPES[name]
    return number if number <= FILE_TYPES["f16"] else QUANTIZED * 1000 + number


def outtype_of(ftype: int) -> str:
    """Return the type of a file whose header has this `ftype`; '' for none of whisper.cpp's."""
    return next((name for name, number in FILE_TYPES.items() if number == ftype % 1000), "")


def types_in_file(
    graph: ModelGraph, tensors: Mapping[str, SourceTensor], options: TypeOptions
) -> tuple[str, dict[str, BlockType]]:
    """Return the type of the file, a key of FILE_TYPES, and that of each tensor.

    Args:
        graph: The model.
        tensors: Its tensors as the file has them, by the name in the graph.
        options: What was asked for.

    Raises UnsupportedError where the rows of a matrix are no whole blocks of the type, or where the source's types are
    to be kept and are several; RefusedError where what is quantized already would be quantized again.
    """
    check_name(options.outtype)
    outtype = options.outtype.lower()
    matrices = [name for name, tensor in tensors.items() if _is_matrix(tensor)]
    natural = {key: decided.type for key, decided in choose_types(graph, TypeOptions(dequantize=True)).items()}
    name = _kept(graph, {natural[key].name.lower() for key in matrices}) if outtype == KEEP else outtype
    wide = F32 if name == "f32" else F16
    types = {key: wide if len(tensor.shape) > 2 else F32 for key, tensor in tensors.items()}
    kind = block_type(name.upper())
    for key in matrices:
        node = graph.by_name[key]
        try:
            kind.row_bytes(node.shape[-1])
        except BlockError as error:
            raise UnsupportedError(
                f"{tensors[key].name}: {error}, and whisper.cpp takes one type for all matrices",
                path=graph.checkpoint.path,
                hint="--outtype q5_0, q8_0 or f16",
            ) from None
        if natural[key] != kind:
            check_encoding(graph, node, kind, options)
        types[key] = kind
    return name, types


def _is_matrix(tensor: SourceTensor) -> bool:
    """Return whether a tensor has the file's type: whisper.cpp has positions, biases and the mel filters in F32."""
    if len(tensor.shape) != 2 or tensor.name == "mel_filters":
        return False
    return not tensor.name.endswith((".positional_embedding", ".bias"))


def _kept(graph: ModelGraph, kinds: set[str]) -> str:
    """Return the type of a file that holds the source's blocks as they are, and plain numbers as whisper.cpp's scripts
    write them, which is F16 whatever they were."""
    if kinds <= {"f32", "f16", "bf16"}:
        return "f16"
    if len(kinds) == 1 and kinds <= FILE_TYPES.keys():
        return kinds.pop()
    raise RefusedError(
        "whisper.cpp takes one type for all matrices",
        path=graph.checkpoint.path,
        found=", ".join(sorted(kinds)),
        expected="one of " + ", ".join(FILE_TYPES),
        hint="--outtype f16 or f32 writes their values; --outtype q5_0 --allow-requantize rounds them again",
    )
