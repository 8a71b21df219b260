"""What Hunyuan's dense models and its mixture share: queries and keys normed after they are turned.

Sources: llama.cpp `src/models/hunyuan-{dense,moe}.cpp`, `conversion/hunyuan.py`; transformers
`modeling_hunyuan_v1_{dense,moe}.py`. Their configurations call 'dynamic' what a fixed `alpha` does to the rotary base:
GGUF gets that base.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Caveat, Default, Dialect, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Derivation, Values
from ggferry.formats.gguf.values import ValueType

F32, STRING = ValueType.FLOAT32, ValueType.STRING
LONGEST = 262144
"""Tokens that alpha=1000 was chosen for (Hunyuan-A13B's report), whose configurations say 32768."""


def alpha_in_force(values: Values) -> float | None:
    """The alpha that changes the rotary base: that of positions called 'dynamic', the only ones of which it is read."""
    alpha = values.get("rope_alpha")
    return float(alpha) if alpha and values.get("kind_stated") == "dynamic" else None


def reads_alpha(values: Values) -> bool | None:
    """Return whether an alpha that is stated is in force; None where none is, as in GGUF, which has the base alone."""
    return alpha_in_force(values) is not None if values.get("rope_alpha") else None


def context(values: Values) -> int:
    """context_length: as stated, but for the models of which Tencent says that alpha makes it longer."""
    declared = int(values["ctx_stated"])
    return LONGEST if alpha_in_force(values) and declared == 32768 else declared


def base(values: Values) -> float:
    """rope.freq_base: that of the configuration times alpha^(d / (d - 2)), where it names an alpha."""
    declared, alpha, width = float(values["base_stated"]), alpha_in_force(values), values["head_dim"]
    if not alpha:
        return declared
    if not alpha > 0 or width < 3:
        raise ValueError(f"alpha {alpha} of a head of {width}")
    return float(declared * alpha ** (width / (width - 2)))


def kind(values: Values) -> str | None:
    """How rotary positions are stretched, where it is stated: by nothing else, where an alpha has changed the base."""
    declared = values.get("kind_stated")
    return "default" if alpha_in_force(values) else declared


def fourth_axis(values: Values) -> int:
    """How many pairs of a head turn by the fourth axis of positions."""
    return int(values["rope_sections"][3])


def listed(name: str, place: str) -> HParam:
    """Return what a configuration lists block by block, or says once."""
    return HParam(name, None, fields={"hf": place}, length="n_layer", allow_scalar=True, required=False)


def alike(name: str) -> Derivation:
    """Return the rule that takes the one number all blocks have of what is listed block by block."""

    def of_all(values: Values) -> int:
        listed = values[name] if isinstance(values[name], tuple) else (values[name],)
        if len(set(listed)) != 1:
            raise ValueError(f"blocks differ in {name}, for which GGUF has no word: {listed[:8]}")
        return int(listed[0])

    return of_all


_BASE = (Default(10000.0, "transformers' default", dialect="hf"),)
ROPE = (
    HParam("rope_alpha", None, F32, {"hf": rope.scaling_place("alpha")}, required=False),
    HParam("base_stated", None, F32, rope.BASE.fields, required=False, defaults=_BASE),
    HParam("rope_base", "rope.freq_base", F32, derive=base, check="rope_base > 1"),
    rope.N_ROT,
    HParam("kind_stated", None, STRING, rope.KIND.fields, words=rope.KIND.words, required=False),
    HParam("rope_kind", None, STRING, derive=kind, required=False),
    HParam("alpha_read", None, common.BOOL, derive=reads_alpha, required=False),
    *rope.SCALING,
)
HPARAMS = (
    common.N_VOCAB,
    HParam("ctx_stated", None, fields=common.N_CTX.fields, required=False),
    HParam("n_ctx", "context_length", derive=context),
    *common.SIZES[2:], common.RMS_EPS, *ROPE, common.TIED, common.SILU,
    *common.BIASES,
)


def attention() -> tuple[Role, ...]:
    """Return the first half of a block, and the norm of the second."""
    return (
        *tensors.norm("attn_norm", "input_layernorm"),
        *tensors.biased_attention(),
        *tensors.qk_norm(names=("query_layernorm", "key_layernorm")),
        *tensors.norm("ffn_norm", "post_attention_layernorm"),
    )


LONGER = Caveat(
    "ctx_stated != n_ctx",
    "the configuration says {ctx_stated} tokens; Tencent made alpha={rope_alpha} for {n_ctx}, which is written",
)
UNREAD = Caveat(
    "rope_alpha > 0 and alpha_read == 0",
    "alpha={rope_alpha} beside rotary positions that are not called dynamic: nobody reads it",
)
IGNORED_KEYS = (
    common.UNBIASED,
    IgnoredKey("eod_token_id im_* text_*_id mask_init_id sep_token_id pad_id", "read with the tokenizer"),
    IgnoredKey("use_qk_norm", "always", (True,)),
    IgnoredKey("use_cla use_mla position_embedding_xdrope add_classification_head", "never", (False,)),
    IgnoredKey("group_limited_greedy", "never", (False,)),
    IgnoredKey("cla_share_factor class_num pool_type dense_list enable_lm_head_fp32", "of what no model of these has"),
    IgnoredKey("kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim", "of latent attention, unused"),
    IgnoredKey("attention_head_dim", "repeats head_dim", follows="head_dim"),
    IgnoredKey("org_vocab_size", "the tensors say it"),
    IgnoredKey("rope_scaling.beta_* rope_scaling.mscale*", "of yarn, or 1 where an alpha takes its place"),
)


def dialects(architecture: str, *ignored: IgnoredKey) -> tuple[Dialect, ...]:
    """Return what checkpoints of an architecture speak."""
    dialect = Dialect(
        "hf", drops=common.DROPS, caveats=(*rope.CAVEATS, LONGER, UNREAD, common.biased_output(architecture)),
        ignored_keys=(*IGNORED_KEYS, *ignored),
    )
    return (dialect,)
