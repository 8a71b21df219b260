"""What Nemotron-H and its mixture share: every block is one branch, Mamba-2, attention, or a feed-forward network.

Sources: llama.cpp `src/models/nemotron-h{,-moe}.cpp`, `conversion/nemotron.py`; transformers `modeling_nemotron_h.py`.
GGUF says by two lists what a block is: heads of keys where it attends, a width where it feeds forward, and where both
are 0 it is a state space. Nothing is turned by position.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING, INT32 = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING, ValueType.INT32
WORDS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}


def kinds(values: Values) -> tuple[str, ...]:
    """What the blocks are, from a letter each: M a state space, * attention, - a network, E experts."""
    pattern = str(values["pattern"])
    if not set(pattern) <= set(WORDS.values()):
        raise ValueError(f"hybrid_override_pattern {pattern!r}")
    return tuple(pattern)


def blocks(values: Values) -> int:
    """block_count, where only the list of kinds says it (transformers 5)."""
    return len(values["kinds"])


def dense_branches(values: Values) -> int:
    """How many blocks are a network without experts."""
    return sum(kind == "-" for kind in values["kinds"])


def heads_kv(values: Values) -> tuple[int, ...]:
    """attention.head_count_kv: of the blocks that attend, 0 of the others."""
    return tuple(values["heads_kv"] if kind == "*" else 0 for kind in values["kinds"])


def widths(values: Values) -> tuple[int, ...]:
    """feed_forward_length: of the blocks that feed forward, that of an expert where they have some, 0 of the others."""
    names = {"-": "ff_stated", "E": "n_ff_exp"}
    return tuple(_of_block(values[names[kind]], n) if kind in names else 0 for n, kind in enumerate(values["kinds"]))


def _of_block(value: int | tuple[int, ...], block: int) -> int:
    return int(value[block]) if isinstance(value, tuple) else int(value)


def decoder_blocks(values: Values) -> int:
    """How many blocks the decoder of a mixture has: those that a configuration lists, else all but those that predict
    further tokens."""
    return len(values["kinds"]) if "kinds" in values else nextn.decoder_blocks(values)


def heads_of_all(values: Values) -> tuple[int, ...]:
    """attention.head_count_kv of a mixture: blocks that predict further tokens attend."""
    return (*heads_kv(values), *(values["heads_kv"],) * nextn.count(values))


def widths_of_all(values: Values) -> tuple[int, ...]:
    """feed_forward_length of a mixture: blocks that predict further tokens feed forward, too."""
    return (*widths(values), *(_of_block(values["n_ff_exp"], 0),) * nextn.count(values))


def expert_width(values: Values) -> int:
    """What goes into an expert: the model's width, or the narrower one of a latent space."""
    return int(values["n_latent"] or values["n_embd"])


HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD,
    HParam("pattern", None, STRING, {"hf": "hybrid_override_pattern"}, required=False),
    HParam("kinds", None, STRING, {"hf": "block_configs.block_type|layers_block_type|layer_types"}, length="n_layer",
           words=WORDS, required=False, derive=kinds),
    HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers"}, derive=blocks),
    common.N_HEAD, hybrid.HEADS_KV_DECLARED,
    HParam("n_head_kv", "attention.head_count_kv", INT32, derive=heads_kv, length="n_layer", allow_scalar=True),
    HParam("head_dim", "attention.key_length", fields={"hf": "head_dim|attention_head_dim"}, implied="n_embd / n_head"),
    HParam("head_dim_v", "attention.value_length", fields={"hf": "head_dim|attention_head_dim"},
           implied="n_embd / n_head"),
    HParam("ff_stated", None, fields={"hf": "intermediate_size"}, required=False),
    HParam("eps", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_epsilon|norm_eps|rms_norm_eps"},
           defaults=(Default(1e-5, "transformers' default", dialect="hf"),)),
    *hybrid.MAMBA2,
    HParam("dt_min", "ssm.time_step_min", F32, {"hf": "time_step_min|mamba_dt_min"}, absent=0.0,
           defaults=(Default(0.001, "transformers' default", dialect="hf"),)),
    common.NEVER_TIED, common.ATTENTION_BIAS, common.MLP_BIAS,
    HParam("activation", None, STRING, {"hf": "mlp_hidden_act"}, words={"relu2": "relu_squared"}, required=False),
    HParam("mixer_activation", None, STRING, {"hf": "mamba_hidden_act"}, words={"silu": "silu"}, required=False),
)
_OF_ALL = {"n_head_kv": heads_of_all, "n_ff": widths_of_all}
N_FF = HParam("n_ff", "feed_forward_length", INT32, derive=widths, length="n_layer", allow_scalar=True)



def of_mixture(hparams: Sequence[HParam]) -> tuple[HParam, ...]:
    """Return `hparams` of a mixture, which count blocks that predict further tokens apart from the others."""
    found = list[HParam]()
    for param in hparams:
        if param.name == "n_layer":
            found += (replace(param, key=None, derive=decoder_blocks), *nextn.HPARAMS[1:])
        elif param.name in _OF_ALL:
            found.append(replace(param, derive=_OF_ALL[param.name], length="n_blocks"))
        else:
            found.append(param)
    return tuple(found)


LAYER = "backbone.layers.{n}."


def frame() -> tuple[Role, ...]:
    """Return what stands before and behind the blocks."""
    return tensors.embedding("backbone.embeddings", "backbone.norm_f")


def mixers() -> tuple[Role, ...]:
    """Return the norm of a block, and what it is where it does not feed forward.

    transformers' class reads no `attention_bias`: where that is true, there may be biases (NVIDIA's own code) or none.
    """
    attending = tensors.attention(
        "mixer.", when="n_head_kv > 0", bias="attention_bias == 1", output_bias="attention_bias == 1"
    )
    return (
        *tensors.norm("attn_norm", "norm"),
        *hybrid.mamba2("mixer.", when="n_head_kv == 0 and n_ff == 0"),
        *(replace(role, optional=role.name.endswith(".bias")) for role in attending),
    )


RECIPE: Conventions = {
    "rope": "none", "residual": "single", "ffn": "plain", "activation": "relu_squared", "decay": "rate",
}
CONVENTIONS: Conventions = {"decay": "log"}
NEXT_TOKENS = Drop("mtp.*", "predicts further tokens for speculative decoding: no part of the decoder")
DROPS = (*common.DROPS, NEXT_TOKENS)
_FIRST, _SECOND = "mtp.layers.0.", "mtp.layers.1."
_OF_FIRST = {f"{name}.": f"{name}." for name in ("enorm", "hnorm", "eh_proj", "norm")}
_OF_FIRST |= {f"mixer.{name}_proj.": f"mixer.{name}_proj." for name in "qkvo"}
_OF_SECOND = {"norm.": "post_attention_layernorm.", "final_layernorm.": "shared_head.norm.", "mixer.": "mixer."}
APPENDED = tuple(
    (f"{at}{theirs}", LAYER, ours)
    for at, names in ((_FIRST, _OF_FIRST), (_SECOND, _OF_SECOND))
    for theirs, ours in names.items()
)
"""Two layers of a checkpoint, attention and experts, are one block (llama.cpp `conversion/nemotron.py`)."""
EXPORTED = tuple((f"{LAYER}{ours}", theirs, "n >= n_layer") for theirs, _, ours in APPENDED)
CENTERED = Caveat(
    "n_nextn > 0",
    "the norm behind the block that predicts further tokens takes the root of the mean square, as TensorRT-LLM, vLLM "
    "and SGLang have it; llama.cpp subtracts the mean before: other proposals, the same answers",
    differs_in="llama.cpp",
)
_BIAS = "layers.{n}.mixer.gate.e_score_correction"
# Puzzle was published under either prefix, with either name of the bias.
RENAMES = (
    (f"backbone.{_BIAS}.bias", f"backbone.{_BIAS}_bias"),
    (f"model.{_BIAS}.bias", f"backbone.{_BIAS}_bias"),
    ("model.", "backbone."),
)
SHORTEST = Caveat(
    "dt_min > 0",
    "transformers lets no time step of a state space be shorter than {dt_min}: written as ssm.time_step_min, but "
    "llama.cpp computes with the steps as they come",
    differs_in="llama.cpp",
)
IGNORED_KEYS = (
    *hybrid.MAMBA_IGNORED_KEYS,
    IgnoredKey("time_step_max time_step_floor rescale_prenorm_residual mamba_dt_*", "used before training only"),
    IgnoredKey(
        "residual_in_fp32 mamba_ssm_cache_dtype use_mamba_kernels moe_shared_expert_overlap", "how it is computed"
    ),
    IgnoredKey("mtp_* num_nextn_predict_layers", "of what predicts further tokens"),
    IgnoredKey("sliding_window", "there is none", (None,)),
)
