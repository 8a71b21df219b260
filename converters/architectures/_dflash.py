"""What the table of DFlash drafts says by functions: what a configuration leaves to the target, and the heads."""

from collections.abc import Sequence

from ggferry.converters.schema.architecture import IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.roles import roles

GEMMA = "gemma4"
NO_TURN = 1e30
"""What llama.cpp's converter divides a frequency by that does not turn."""
PAIRS_TO_HALVES = Rearrange("(h d two) -> (h two d)", (("two", 2), ("d", "head_dim/2")))

IGNORED_KEYS = IgnoredKey(
    "tie_word_embeddings max_window_layers markov_rank enable_confidence_head confidence_head_* has_embed_tokens "
    "loss_* gamma num_anchor_tokens",
    "of tensors, which are taken as they are, or of training",
)


def inner(name: str, *places: str) -> dict[str, str]:
    """The places of what a configuration keeps in `dflash_config`, or beside it."""
    return {"hf": "|".join((f"dflash_config.{name}", *places))}


def layers(values: Values) -> tuple[int, ...] | None:
    """The target's blocks whose inputs are read: those that listed outputs are of, and one more; or as listed."""
    if outputs := values.get("target_outputs"):
        return tuple(number + 1 for number in outputs)
    return tuple(values["target_inputs"])


def from_anchor(values: Values) -> bool | None:
    """Whether row i guesses token i + 1: as stated, or in all drafts with a Markov head but those of EAGLE-3's kind,
    which say which inputs they read. None for drafts without such a head."""
    if not values.get("markov_rank"):
        return None
    declared = values.get("anchor_stated")
    return values.get("target_inputs") is None if declared is None else bool(declared)


def has_confidences(values: Values) -> bool | None:
    """Whether a draft with a Markov head says how sure it is; None without such a head."""
    return "n_confidences" in values if values.get("markov_rank") else None


def embedding_scale(values: Values) -> float | None:
    """What the target's embeddings are multiplied by: as stated, or √width beside a Gemma."""
    declared = values.get("scale_stated")
    if declared is not None:
        return float(declared)
    gemma = values.get("draft_kind") == GEMMA or values.get("target_gemma")
    return float(values["n_embd"]) ** 0.5 if gemma else None


def attention_scale(values: Values) -> float | None:
    """What scores are multiplied by: 1 in Gemma 4's drafts."""
    return 1.0 if values.get("draft_kind") == GEMMA else None


def window(values: Values) -> int | None:
    """How far back blocks with a window see; None where none has one."""
    width = int(values.get("window_stated") or 0)
    listed = values.get("layer_windows") if values.get("window_used") or values.get("window_listed") else None
    return width or None if values.get("window_everywhere") or any(listed or ()) else None


def windows(values: Values) -> tuple[bool, ...] | None:
    """Which blocks have a window: all, or those that are listed. None where none has one, and for several streams,
    where all of them have it (`dflash.cpp` reads no list there)."""
    if not window(values) or values.get("n_streams"):
        return None
    if values.get("window_everywhere"):
        return (True,) * int(values["n_layer"])
    return tuple(values["layer_windows"])


def key_heads(values: Values) -> int:
    """Heads of keys: Gemma 4's are those of its blocks without a window."""
    return int(values["n_head_kv_global" if values.get("draft_kind") == GEMMA else "n_head_kv_stated"])


def head_width(values: Values) -> int:
    """The width of a head, as `key_heads`; the heads together as wide as the model where nothing is stated."""
    if values.get("draft_kind") == GEMMA:
        return int(values["head_dim_global"])
    declared = values.get("head_dim_stated")
    return int(values["n_embd"] // values["n_head"] if declared is None else declared)


def rotated_width(values: Values) -> int:
    """How much of a head turns: Gemma 4's factors say it of the whole head, DeepSeek V4 states it."""
    if values.get("n_streams") and "n_rot_stated" in values:
        return int(values["n_rot_stated"])
    share = 1.0 if values.get("rope_kind") == "proportional" else values.get("rope_fraction")
    return int(values["head_dim"] * float(1.0 if share is None else share))


def sections(values: Values) -> tuple[int, ...] | None:
    """Beside a target whose positions have several axes a draft turns by the first alone."""
    return (int(values["head_dim"]) // 2, 0, 0, 0) if values.get("target_axes") else None


def activation(values: Values) -> str:
    """The activation in our words."""
    declared = str(values.get("hidden_activation", "silu"))
    return {"gelu_pytorch_tanh": "gelu_tanh"}.get(declared, declared)


def proportional_factors(values: Values) -> list[float] | None:
    """What divides the rotary frequencies, `(head_dim / 2,)`, where a part of each head turns as if all did."""
    if values.get("rope_kind") != "proportional":
        return None
    half = int(values["head_dim"]) // 2
    share = values.get("rope_fraction")
    rotated = int(float(0.25 if share is None else share) * values["head_dim"] // 2)
    return [1.0] * rotated + [NO_TURN] * (half - rotated)


def heads() -> Sequence[Role]:
    """Return the tensors of DSpark's heads and of DFlash 2's score of pairs."""
    markov = roles("""
    markov_w1.weight optional : n_vocab markov_rank                  | hf markov_head.markov_w1.weight
    markov_w2.weight when=markov_rank > 0 : n_draft markov_rank      | hf markov_head.markov_w2.weight
    conf_proj.weight optional : n_confidences n_embd+markov_rank     | hf confidence_head.proj.weight
    conf_proj.bias optional   : n_confidences                        | hf confidence_head.proj.bias
    """)
    pairs = roles(
        """
        predecessor.weight : n_vocab selector_rank | hf predecessor_codebook
        successor.weight   : n_vocab selector_rank | hf successor_codebook
        hidden.weight      : selector_rank n_embd  | hf hidden_projection.weight
        """,
        when="selector_rank > 0",
        under={"gguf": "selector_", "hf": "candidate_selector."},
    )
    return (*markov, *pairs)


_GROUPS = "2*conv_kernel_size*(n_embd/conv_group_size)"
SHARED = """
attn_norm.weight f32 : n_embd | hf,gemma4 input_layernorm.weight
attn_sinks.weight f32 optional : n_head | hf self_attn.sinks
ffn_norm.weight f32 : n_embd | hf post_attention_layernorm.weight
"""
"""What blocks of one stream and of several have."""
BLOCK = f"""
attn_q.weight : n_head*head_dim n_embd | hf,gemma4 self_attn.q_proj.weight
attn_k.weight : n_head_kv*head_dim n_embd | hf,gemma4 self_attn.k_proj.weight
attn_v.weight when=draft_kind != 'gemma4' : n_head_kv*head_dim n_embd | hf,gemma4 self_attn.v_proj.weight
attn_output.weight : n_embd n_head*head_dim | hf,gemma4 self_attn.o_proj.weight
attn_q_norm.weight f32 : head_dim | hf,gemma4 self_attn.q_norm.weight
attn_k_norm.weight f32 : head_dim | hf,gemma4 self_attn.k_norm.weight
post_attention_norm.weight f32 optional : n_embd | gemma4 post_attention_layernorm.weight
ffn_gate.weight : n_ff n_embd | hf,gemma4 mlp.gate_proj.weight
ffn_down.weight : n_embd n_ff | hf,gemma4 mlp.down_proj.weight
ffn_up.weight : n_ff n_embd | hf,gemma4 mlp.up_proj.weight
post_ffw_norm.weight f32 optional : n_embd | gemma4 post_feedforward_layernorm.weight
layer_output_scale.weight optional : 1 | gemma4 layer_scalar
attn_conv_base when=selector_rank > 0 : 2 conv_kernel_size n_embd | hf attention_conv.base_kernel
attn_conv_proj.weight when=selector_rank > 0 : {_GROUPS} n_embd | hf attention_conv.kernel_projection.weight
ffn_conv_base when=selector_rank > 0 : 2 conv_kernel_size n_embd | hf mlp_conv.base_kernel
ffn_conv_proj.weight when=selector_rank > 0 : {_GROUPS} n_embd | hf mlp_conv.kernel_projection.weight
"""
