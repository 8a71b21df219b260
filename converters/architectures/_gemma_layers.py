"""What Gemma 3n and 4 share: embeddings of every block, blocks that take over keys and values, norms without an offset;
and what Gemma 4's configuration says of its two kinds of blocks.
"""

from statistics import NormalDist

from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey, Role
from ggferry.converters.schema.block_patterns import all_but_every, of_window
from ggferry.converters.schema.derivations import Values, float32
from ggferry.converters.schema.layouts.parts import Extended
from ggferry.converters.schema.roles import Roles, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

N_EMBD_PER_LAYER = HParam(
    "n_embd_per_layer", "embedding_length_per_layer_input", fields={"hf": "hidden_size_per_layer_input"}, null=0,
    defaults=(Default(256, "transformers' default", dialect="hf"),),
)
BASES = (
    HParam("rope_base", "rope.freq_base", F32, {"hf": "rope_parameters.full_attention.rope_theta|rope_theta"},
           defaults=(Default(1e6, "transformers' default", dialect="hf"),), check="rope_base > 1"),
    HParam("rope_base_swa", "rope.freq_base_swa", F32,
           {"hf": "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq"},
           defaults=(Default(10000.0, "transformers' default", dialect="hf"),), check="rope_base_swa > 1"),
    HParam("rope_kind_swa", None, ValueType.STRING, {"hf": "rope_parameters.sliding_attention.rope_type"},
           words={"default": "default"}, required=False),
)
SOFTCAP = HParam(
    "final_softcap", "final_logit_softcapping", F32, {"hf": "final_logit_softcapping"}, absent=0.0, unrepresentable=0.0
)
# llama.cpp takes 30 for Gemma 4 where the key is not there: a model that caps nothing says 0.
SOFTCAP_DECLARED = HParam(
    "final_softcap", "final_logit_softcapping", F32, {"hf": "final_logit_softcapping"}, null=0.0,
    unrepresentable=0.0,
    defaults=(Default(0.0, "transformers' default", dialect="hf"), Default(30.0, "what readers take", dialect="gguf")),
)
DROPS = (
    *half.drop_vision("*vision_tower.*", "*vision_embedder.*", "*embed_vision.*", "*multi_modal_projector.*"),
    *half.drop_audio("*audio_tower.*", "*embed_audio.*"),
)
IGNORED_KEYS = (
    half.VISION_KEYS, half.AUDIO_KEYS,
    IgnoredKey("vision_soft_tokens_per_image audio_soft_tokens_per_image", "of the vision and audio encoders"),
    IgnoredKey("vocab_size_per_layer_input", "the tensor says it"),
    IgnoredKey("vocab_size_per_layer_input", "as many as there are tokens", follows="n_vocab"),
)
BY_BLOCK = IgnoredKey("per_layer_config.*", "what blocks without a window have of their own: their tensors show it")
CLIP = IgnoredKey("altup_coef_clip", "used in training only")


def block_embeddings(when: str = "") -> Roles:
    """Return what makes the embeddings of every block: rows beyond the table's are its first, as in transformers."""
    return roles(
        """
        per_layer_token_embd.weight    : n_vocab n_layer*n_embd_per_layer | hf model.embed_tokens_per_layer.weight @all
        per_layer_model_proj.weight    : n_layer*n_embd_per_layer n_embd  | hf model.per_layer_model_projection.weight
        per_layer_proj_norm.weight f32 : n_embd_per_layer                 | hf model.per_layer_projection_norm.weight
        """,
        when=when, all=Extended("n_vocab"),
    )


def block_input(when: str = "") -> tuple[Role, ...]:
    """Return what a block does with its own embedding."""
    return (
        *linear("inp_gate", "n_embd_per_layer n_embd", "per_layer_input_gate", when=when),
        *linear("proj", "n_embd n_embd_per_layer", "per_layer_projection", when=when),
        *norm("post_norm", "post_per_layer_input_norm", when=when),
    )


def feed_forward_norms() -> tuple[Role, ...]:
    """Return the norms behind attention and around the feed-forward half."""
    return (
        *norm("post_attention_norm", "post_attention_layernorm"),
        *norm("ffn_norm", "pre_feedforward_layernorm"),
        *norm("post_ffw_norm", "post_feedforward_layernorm"),
    )


# --- Gemma 4's two kinds of blocks --------------------------------------------------------------------------


def windows(values: Values) -> tuple[bool, ...]:
    """Blocks with a window: as listed, or five of six; never the last (transformers `Gemma4TextConfig`)."""
    listed = values.get("layer_windows")
    found = all_but_every(6, values) if listed is None else tuple(listed)
    return (*found[:-1], False)


def head_widths(values: Values) -> tuple[int, ...]:
    """The width of a head in every block."""
    return of_window(values, "head_dim")


def rotated_widths(values: Values) -> tuple[int, ...]:
    """How much of a head may turn in every block."""
    return of_window(values, "n_rot")


def key_heads(values: Values) -> int | tuple[int, ...]:
    """attention.head_count_kv: one number, or where blocks without a window have others, one a block."""
    own, listed = values["n_head_kv_swa"], values.get("n_head_kv_listed")
    other = values.get("n_head_kv_global") if values.get("k_is_v") and listed is None else listed
    if other is None:
        return int(own)
    return tuple(own if window else other for window in values["swa_layers"])


def widths(values: Values) -> int | tuple[int, ...]:
    """feed_forward_length: one number, or twice as much in the blocks that take over keys and values."""
    width, own = values["n_ff_stated"], values["n_layer"] - values["shared_kv_layers"]
    if not values.get("double_wide"):
        return int(width)
    return tuple(width * (2 if n >= own else 1) for n in range(values["n_layer"]))


def proportional_factors(values: Values) -> list[float]:
    """What divides the rotary frequencies of blocks without a window, `(n_rot_full / 2,)`: the first part turns as it
    would if all did, the rest does not turn (transformers `_compute_proportional_rope_parameters`)."""
    half_head = values["head_dim_full"] // 2
    rotated = int(values["rope_fraction_full"] * values["head_dim_full"] // 2)
    return [float(values.get("rope_stretch", 1.0))] * rotated + [NO_TURN] * (half_head - rotated)


NO_TURN = 1e30
"""What llama.cpp's converter divides a frequency by that does not turn."""


# --- Gemma 3n's sparse activations --------------------------------------------------------------------------


HALF_OF_ALL = 2.0**-126
"""activation_sparsity_scale where half of the gates stand out: 0 standard deviations, but 0 says that all are kept."""


def sparsity(values: Values) -> tuple[float, ...]:
    """activation_sparsity_scale: how many standard deviations a gate must stand out by, in every block."""
    declared, count = values.get("sparsity_stated"), values["n_layer"]
    if declared is None:
        declared = tuple(0.95 if n < 10 < count else 0.0 for n in range(count))  # Gemma3nTextConfig
    listed = declared if isinstance(declared, tuple) else (declared,) * count
    if any(share >= 1 for share in listed):
        raise ValueError(f"activation_sparsity {max(listed)}: a share below 1 is expected")
    return tuple(float32(NormalDist().inv_cdf(share)) or HALF_OF_ALL if share > 0 else 0.0 for share in listed)


def sparse_unlike_published(values: Values) -> int:
    """Blocks that are not sparse as llama.cpp has it: the first ten, where one gate of twenty stands out."""
    scales = values["sparsity_scale"]
    return sum(abs(scale - (1.6448536 if n < 10 else 0.0)) > 1e-5 for n, scale in enumerate(scales))
