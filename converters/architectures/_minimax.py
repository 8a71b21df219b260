"""MiniMax-01: what its branches, and what they read, are multiplied by. M2: how much of a head turns. M3: which blocks
choose what they see."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values


def scale(name: str, place: str) -> HParam:
    """Return what a branch's input is multiplied by: the same for all branches."""
    return HParam(name, None, common.F32, {"hf": place}, required=False, check=f"{name} == residual_scale")


def ones(name: str, place: str) -> HParam:
    """Return what a branch is multiplied by, which GGUF has no word for: one."""
    return HParam(name, None, common.F32, {"hf": place}, words={1: 1.0}, required=False)


def every_other(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have lightning attention by a configuration of transformers' own class that lists none."""
    own = values.get("hf_class") == "MiniMaxForCausalLM"
    return tuple(n % 2 == 1 for n in range(values["n_layer"])) if own else None


# Published M2s state what turns in this key alone; where a fraction is stated, transformers takes that.
ROTARY = HParam("rotary_stated", None, fields={"hf": "rotary_dim"}, required=False)


def fraction(values: Values) -> float:
    """Return the part of a head that turns by `rotary_dim`, which transformers divides by the width of a head."""
    return float(values["rotary_stated"] / values["head_dim"])


def chooses_where_sparse(values: Values) -> int | None:
    """Return 1 where just the blocks of experts look at chosen tokens, as llama.cpp has it.

    A configuration that lists no kinds of attention means that all blocks look at all tokens, to transformers as to
    vLLM, whatever tensors there are. Raises ValueError where the graph would be another; None where nothing can say it.
    """
    dense, listed = values["n_dense"], values.get("choosing_layers")
    if listed is None and "hf_class" not in values:
        return None
    sparse = [n >= dense for n in range(values["n_layer"])]
    if list(listed or [False] * len(sparse)) == sparse:
        return 1
    unsaid = "the configuration lists no kinds of attention (layer_types or sparse_attention_config), so that all "
    reason = unsaid + "blocks look at all tokens" if listed is None else "other blocks choose what they look at"
    raise ValueError(f"{reason}: llama.cpp's graph chooses tokens in {sum(sparse)} blocks of experts alone")
