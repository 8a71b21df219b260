"""MiniMax-01: what its branches, and what they read, are multiplied by. M3: which blocks choose what they see."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values


def scale(name: str, place: str) -> HParam:
    """Return what a branch's input is multiplied by: the same for all branches."""
    return HParam(name, None, common.F32, {"hf": place}, required=False, check=f"{name} == residual_scale")


def ones(name: str, place: str) -> HParam:
    """Return what a branch is multiplied by, which GGUF has no word for: one."""
    return HParam(name, None, common.F32, {"hf": place}, words={1: 1.0}, required=False)


def chooses_where_sparse(values: Values) -> int:
    """Return 1 where just the blocks of experts look at chosen tokens, as llama.cpp has it, else 0."""
    dense = values["n_dense"]
    return int(list(values["choosing_layers"]) == [n >= dense for n in range(values["n_layer"])])
