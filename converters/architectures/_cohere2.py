"""What Cohere 2 and its mixture share, and what of a configuration follows for the mixture.

Sources: llama.cpp `src/models/cohere2{,moe}.cpp`, `conversion/command_r.py`; transformers `modeling_cohere2{,_moe}.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import leading_dense
from ggferry.converters.schema.derivations import Values

LOGIT_SCALE = HParam(
    "logit_scale", "logit_scale", common.F32, {"hf": "logit_scale"}, unrepresentable=0.0,
    defaults=(Default(0.0625, "transformers' default", dialect="hf"),),
)
# A whole head turns: published configurations say so, transformers has no such key.
WHOLE = HParam("rope_part", None, common.F32, {"hf": "rotary_pct"}, words={1: 1.0}, required=False, own_only=True)
IGNORED_KEYS = (
    IgnoredKey("position_embedding_type", "the blocks with a window turn, the others do not", ("rope_gptj",)),
    IgnoredKey("order_of_interleaved_layers", "the list of blocks says it, too", ("local_attn_first",)),
    IgnoredKey("use_gated_activation use_parallel_block", "always", (True,)),
    IgnoredKey("use_parallel_embedding use_embedding_sharing use_qk_norm", "never in this class", (False, True)),
    IgnoredKey("layer_switch", "the list of blocks says it, too"),
)


def dense(values: Values) -> int:
    """leading_dense_block_count, from a list of what the blocks are, or as it is stated."""
    return leading_dense(values) if "sparse_layers" in values else int(values["dense_stated"])


def windows(values: Values) -> tuple[bool, ...]:
    """Which blocks have a window: as listed, or all but one a period, dense blocks counted apart: those that a number
    says, as transformers does not look at the list of them here.
    """
    listed, first = values.get("layer_windows"), values.get("dense_stated", values["n_dense"])
    if listed is not None:
        return tuple(listed)
    periods = values["prefix_period"], values["window_period"]
    if not all(period > 0 for period in periods):
        raise ValueError(f"windows in all blocks but each {periods}th")
    return tuple(
        (n + 1) % periods[0] != 0 if n < first else (n - first + 1) % periods[1] != 0 for n in range(values["n_layer"])
    )


def rotated(values: Values) -> tuple[bool, ...]:
    """Which blocks turn queries and keys: those with a window, and dense ones, where all of those are without."""
    dense_too = values["prefix_period"] == 1
    return tuple(bool(window) or (dense_too and n < values["n_dense"]) for n, window in enumerate(values["swa_layers"]))


def default_rotated(values: Values) -> tuple[bool, ...]:
    """As `turned`, where GGUF says nothing else."""
    return rotated({**values, "prefix_period": 1})


def rotated_differently(values: Values) -> int:
    """How many blocks differ from what llama.cpp turns."""
    return sum(
        bool(variant) != rule for variant,
        rule in zip(values["rope_layers"], default_rotated(values), strict=False)
    )


def normed(values: Values) -> bool:
    """expert_weights_norm: the weights of the chosen experts sum to one where the softmax is over them alone."""
    return True if values["expert_gating"] == 1 else bool(values["norm_stated"])


def epsilon(values: Values) -> float:
    """The norms' epsilon: that of root mean squares, where a model has one."""
    found = values.get("eps_rms")
    return float(values["eps_layer"] if found is None else found)


def norm(values: Values) -> str:
    """What the norms are."""
    return "layer" if values.get("eps_rms") is None else "rms"
