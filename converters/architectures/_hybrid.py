"""Models of several kinds of blocks: which block is of which kind, and Mamba-2 as one of them.

GGUF says by `attention.head_count_kv`, one a block, which blocks attend: those that do not have none (llama.cpp
`llama-hparams.cpp`, `is_recr_impl`). State spaces: llama.cpp `mamba-base.cpp`, the names of their tensors `_mamba`.
"""

from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.architectures._common import N_EXPERT_USED
from ggferry.converters.architectures._tensors import linear, tensor
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import SAME, Layout, Then
from ggferry.converters.schema.layouts.parts import Reshape, Squeeze
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import both
from ggferry.formats.gguf.values import ValueType

BOOL, STRING, INT32 = ValueType.BOOL, ValueType.STRING, ValueType.INT32


def rotated_part(values: Values) -> float | None:
    """Return which part of a head turns where `rope_parameters` say nothing; None for a whole head.

    Half in Bamba, whose class writes that over what stands elsewhere (transformers `BambaConfig.__post_init__`).
    """
    return 0.5 if values.get("hf_class") == "BambaForCausalLM" else None


def heads_kv(values: Values) -> tuple[int, ...]:
    """attention.head_count_kv: the heads of keys of the blocks that attend, 0 of the others."""
    return tuple(values["heads_kv"] if attends else 0 for attends in values["attends"])


def as_many_heads_kv(values: Values) -> int:
    """Heads of keys of a block that attends: as a file's list has them, or as many as heads where nothing is stated."""
    if "n_head_kv" not in values:
        return int(values["n_head"])
    declared = values["n_head_kv"]
    if not isinstance(declared, tuple):
        return int(declared)  # one number stands for all blocks
    if not any(declared):
        raise KeyError("heads_kv")  # no block attends
    return int(max(declared))


def attending(values: Values) -> tuple[bool, ...]:
    """Which blocks attend: those of a list of numbers, or one a period, of which the first is said."""
    blocks = range(values["n_layer"])
    if "attn_indices" in values:
        return tuple(n in values["attn_indices"] for n in blocks)
    period, offset = values["attn_period"], values["attn_offset"]
    if not period > 0:
        raise ValueError(f"one block of attention every {period}")
    return tuple(n % period == offset for n in blocks)


def listed(values: Values) -> int:
    """How many blocks a list of numbers names."""
    return len(values["attn_indices"])


def sparse_layers(values: Values) -> tuple[bool, ...]:
    """Which blocks have experts: one a period, where there is more than one expert."""
    period, offset = values["expert_period"], values["expert_offset"]
    if not period > 0:
        raise ValueError(f"one block of experts every {period}")
    return tuple(values["n_expert"] > 1 and n % period == offset for n in range(values["n_layer"]))


def experts(values: Values) -> int:
    """Return expert_count: as stated, but 0 for one alone, which transformers makes a dense feed-forward of."""
    return int(values["experts_stated"]) if values["experts_stated"] > 1 else 0


def experts_used(values: Values) -> int:
    """Return expert_used_count: as stated, where there are experts."""
    return int(values["used_stated"]) if values["n_expert"] else 0


USED_WHERE_THERE_ARE_EXPERTS = (
    HParam("used_stated", None, fields=N_EXPERT_USED.fields, required=False),
    replace(N_EXPERT_USED, fields={}, derive=experts_used),
)


def declared(name: str, place: str, default: int) -> HParam:
    """Return an hparam that a configuration states, or else is what transformers takes."""
    why = (Default(default, "transformers' default", dialect="hf"),)
    return HParam(name, None, fields={"hf": place}, required=False, defaults=why)


HEADS_KV_DECLARED = HParam(
    "heads_kv", None, fields={"hf": "num_key_value_heads"}, required=False,
    check="0 < heads_kv and n_head % heads_kv == 0",
)
HEADS_KV = HParam("n_head_kv", "attention.head_count_kv", INT32, derive=heads_kv, length="n_layer", allow_scalar=True)
KINDS = {"mamba": False, "linear_attention": False, "conv": False, "attention": True, "full_attention": True}
ATTENDS = HParam(
    "attends", None, BOOL, {"hf": "layer_types|layers_block_type"}, length="n_layer", words=KINDS, required=False,
    derive=attending,
)
ATTENDS_DECLARED = (
    HParam("n_attending", None, derive=listed, required=False),
    HParam(
        "attn_indices", None, fields={"hf": "attn_layer_indices|full_attn_idxs"}, length="n_attending", required=False
    ),
    HParam("attn_period", None, fields={"hf": "attn_layer_period"}, required=False),
    HParam("attn_offset", None, fields={"hf": "attn_layer_offset"}, required=False),
)

def uncut(values: Values) -> bool:
    """Whether time steps are what they are, from zero to infinity. Raises ValueError where they are cut off."""
    if values["dt_limit"] != ("zero", "infinity"):
        raise ValueError(f"time steps are kept from {' to '.join(values['dt_limit'])}, for which no runtime has a key")
    return True


def time_steps(fields: Mapping[str, str]) -> tuple[HParam, ...]:
    """Return the hparams by which a model whose time steps are cut off is refused."""
    words = {0.0: "zero", float("inf"): "infinity"}
    return (
        HParam("dt_limit", None, STRING, fields, words=words, required=False, length="2"),
        HParam("dt_uncut", None, BOOL, derive=uncut, required=False),
    )


# No loader has a place for it: such biases are zeros, or refused.
PROJECTED = HParam("ssm_bias", None, BOOL, {"hf": "mamba_proj_bias|use_bias"}, required=False, nonzero=True)
_COLUMN = Reshape(("n_heads", 1), back=("n_heads",))
CONV = Squeeze(1)
MAMBA2 = (
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "mamba_d_conv|conv_kernel"}),
    HParam("n_state", "ssm.state_size", fields={"hf": "mamba_d_state|ssm_state_size"}),
    HParam("n_group", "ssm.group_count", fields={"hf": "mamba_n_groups|n_groups"},
           check="0 < n_group and n_heads % n_group == 0"),
    HParam("n_heads", "ssm.time_step_rank", fields={"hf": "mamba_n_heads|mamba_num_heads"},
           check="0 < n_heads and n_inner % n_heads == 0"),
    HParam("n_inner", "ssm.inner_size"),
    *time_steps({"hf": "time_step_limit"}),
    HParam("conv_bias", None, BOOL, {"hf": "mamba_conv_bias|use_conv_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    PROJECTED,
)
MAMBA_IGNORED_KEYS = (
    IgnoredKey("mamba_expand expand mamba_d_head mamba_d_ssm mamba_head_dim", "the tensors say it"),
    IgnoredKey("mamba_expand expand", "how much wider the state space is", follows="@space_expansion"),
    IgnoredKey("mamba_d_head mamba_head_dim", "the width of a head", follows="@space_head"),
    IgnoredKey("mamba_d_ssm", "the width of the state space", follows="@space_width"),
    IgnoredKey("mamba_dt_rank", "the rank of the time step", follows="@step_rank"),
    IgnoredKey("mamba_chunk_size chunk_size use_mamba_kernels use_mambapy use_associative_scan", "how it is computed"),
    IgnoredKey("num_logits_to_keep", "how many logits generation keeps"),
    IgnoredKey("z_loss_coefficient", "used in training only"),
)


def mamba2(
    source: str = "mamba.", *, when: str = "", normed: str = "", enters: Layout = SAME, leaves: Layout = SAME
) -> tuple[Role, ...]:
    """Return the tensors of a Mamba-2 state space, whose norm is one a group.

    `normed`: the condition under which it has a norm. `enters`, `leaves`: layouts of the two projections. Sizes it
    reads: n_inner, n_group, n_state, n_heads, n_conv.
    """
    channels = "n_inner+2*n_group*n_state"
    groups = Reshape(("n_group", "n_inner / n_group"), back=("n_inner",))
    shape, norm = "n_group n_inner/n_group", f"{source}norm.weight"
    return (
        *linear("ssm_in", f"{channels}+n_inner+n_heads n_embd", f"{source}in_proj", enters, when=when),
        tensor("ssm_conv1d.weight", f"{channels} n_conv", f"{source}conv1d.weight", CONV, f32=True, when=when),
        tensor("ssm_conv1d.bias", channels, f"{source}conv1d.bias", when=both(when, "conv_bias == 1")),
        tensor("ssm_dt.bias", "n_heads", f"{source}dt_bias", when=when),
        tensor("ssm_a", "n_heads 1", f"{source}A_log", Then(_COLUMN, NEG_EXP), f32=True, when=when),
        tensor("ssm_d", "n_heads 1", f"{source}D", _COLUMN, f32=True, when=when),
        tensor("ssm_norm.weight", shape, norm, groups, f32=True, when=both(when, normed)),
        *linear("ssm_out", "n_embd n_inner", f"{source}out_proj", leaves, when=when),
    )
