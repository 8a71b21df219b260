"""Say what parts of quantized matrices mean, element by element, by the formulas that the schemes publish.

This shares nothing with `converters.prequantized`: it is the second opinion that the proof asks. It runs in the program
of `library_reader`, over tensors that the libraries read; it has numpy and nothing of ggferry.
"""

from __future__ import annotations

import numpy as np
from float_schemes import bitnet, bitsandbytes, fp8, modelopt, mxfp4, quark
from integer_schemes import aqlm, awq, compressed_tensors, exl2, gptq, hqq, quanto, torchao
from mlx_layers import mlx
from sinq_layers import sinq
from stored_parts import Array, Named, Settings

SCHEMES = {
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "quark": quark,
    "modelopt": modelopt,
    "gptq": gptq,
    "awq": awq,
    "mlx": mlx,
    "hqq": hqq,
    "sinq": sinq,
    "torchao": torchao,
    "quanto": quanto,
    "exl2": exl2,
    "aqlm": aqlm,
    "mxfp4": mxfp4,
    "bitnet": bitnet,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
}


def rows(
    read: Named, scheme: str, settings: Settings, name: str, first: int, last: int, left: int, right: int
) -> Array:
    """Return elements `left:right` of rows `first:last` of a matrix, float32.

    Args:
        read: The tensors of the checkpoint.
        scheme: What its configuration calls the scheme.
        settings: That configuration.
        name: Name of the matrix, as it would be called were it not quantized.
        first: First row, counted over all matrices of a stack.
        last: Row after the last.
        left: First column.
        right: Column after the last.
    """
    return SCHEMES[scheme](read, settings, name, np.arange(first, last), np.arange(left, right))
