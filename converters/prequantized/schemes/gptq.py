"""GPTQ of 2, 3, 4 and 8 bits, in both versions of its format.

Source: GPTQModel's and AutoGPTQ's `quantize_config.json`.
"""

from __future__ import annotations

from ggferry.converters.prequantized.dequantized_rows import Gptq
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    group_size,
    matrix,
    piece,
)
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError
from ggferry.quant.codecs.packed import WORD_BITS


def find(checkpoint: Checkpoint, config: Config) -> Found:
    version = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedError(
            "GPTQ weights in a kernel's own order",
            path=checkpoint.path,
            found=version,
            expected="gptq, gptq_v2",
            hint=DEQUANTIZE,
        )
    found, widths = Found("GPTQ"), set()
    for name, words in checkpoint.tensors.items():
        if not name.endswith(".qweight"):
            continue
        base = name.removesuffix(".qweight")
        zeros, scales = (piece(checkpoint, f"{base}.{end}", name) for end in ("qzeros", "scales"))
        order = checkpoint.tensors.get(f"{base}.g_idx")
        made = _gptq_matrix(checkpoint, config, words, zeros, scales, order, version == "gptq")
        shape = (words.shape[1], words.shape[0] * WORD_BITS // made.bits)
        found.matrices[name] = Matrix(f"{base}.weight", shape, made)
        found.used |= {f"{base}.{end}" for end in ("qzeros", "scales", "g_idx")}
        widths.add(made.bits)
    found.scheme = f"GPTQ of {' and '.join(map(str, sorted(widths)))} bits"
    _drop_empty_biases(checkpoint, found)
    return found


def _gptq_matrix(
    checkpoint: Checkpoint,
    config: Config,
    words: TensorRef,
    zeros: TensorRef,
    scales: TensorRef,
    order: TensorRef | None,
    first_version: bool,
) -> Gptq:
    for ref in (words, zeros, scales):
        matrix(checkpoint, ref)
        if len(ref.spans) != 1 or (ref is not scales and ref.type.name not in ("I32", "U32")):
            raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    bits, rows = config.get("bits"), words.shape[1]
    if order is not None and order.elements:  # with per-module settings the shapes say it, not the configuration
        stated = config.get("bits")
        bits, rest = divmod(words.shape[0] * WORD_BITS, order.elements)
        if rest or (bits != stated and not config.get("dynamic")):
            raise InconsistentError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected=stated)
    if type(bits) is not int or bits not in (2, 3, 4, 8):
        raise UnsupportedError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected="2, 3, 4 or 8")
    columns, rest = divmod(words.shape[0] * WORD_BITS, bits)
    if rest:
        raise ShapeError(f"{words.name!r} of {bits} bits", path=checkpoint.path, found=list(words.shape))
    group = group_size(checkpoint, config.get("group_size", -1), columns)
    groups, needed = scales.shape[0], -(-columns // group)
    if order is None and groups != needed:
        raise ShapeError(f"groups of {scales.name!r}", path=checkpoint.path, found=groups, expected=needed)
    for ref, wanted in ((scales, (groups, rows)), (zeros, (groups, -(-rows * bits // WORD_BITS)))):
        if ref.shape != wanted:
            beside = f"{ref.name!r} beside {words.name!r}"
            raise ShapeError(beside, path=checkpoint.path, found=list(ref.shape), expected=list(wanted))
    return Gptq(checkpoint, words, zeros, scales, order, bits, group, first_version)


def _drop_empty_biases(checkpoint: Checkpoint, found: Found) -> None:
    """Packers gave layers a bias that have none. Where all of a model are zeros, they are such."""
    beside = [name.removesuffix("qweight") + "bias" for name in found.matrices]
    biases = [checkpoint.tensors[name] for name in beside if name in checkpoint.tensors]
    if len(biases) != len(beside) or any(_holds_values(checkpoint, ref) for ref in biases):
        return
    found.used |= {ref.name for ref in biases}
    why = "zeros, like every bias beside a quantized weight of this model: the packer added them"
    found.dropped += [Dropped(ref, why, follows=True) for ref in biases]


def _holds_values(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    from ggferry.converters.model_graph.rows import values_of

    return any(values_of(checkpoint, ref, row, row + 1).any() for row in range(ref.rows))


SCHEME = Scheme(("gptq",), find)
