"""Roles and hparams of vision transformers, under GGUF's names; each name of a source is an argument."""

from dataclasses import replace
from math import isqrt
from typing import Any

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Caveat, Default, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Derivation, Values
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import Roles, block, roles

WIDTH = "v_n_embd"


PATCHES = "(v_image_size//v_patch_size)*(v_image_size//v_patch_size)"
"""The number of patches of a whole picture."""


def blocks(layer: str, *parts: Roles | str) -> Roles:
    """Return the roles of every block: `parts` under `layer`, a name with {n}."""
    return block(*parts, name="v.blk.{n}.", layer=layer)


def linear(name: str, source: str, rows: str, columns: str, bias: bool | str = True) -> Roles:
    """Return a matrix `(rows, columns)` and its bias, if it has one; `bias` may be 'optional'."""
    return roles(f"{name}.weight : {rows} {columns} | hf {source}.weight\n{_bias(name, source, rows, bias)}")


def norm(name: str, source: str, bias: bool | str = True, width: str = WIDTH) -> Roles:
    """Return a norm `width` wide; `bias` as for `linear`."""
    return roles(f"{name}.weight f32 : {width} | hf {source}.weight\n{_bias(name, source, width, bias)}")


def _bias(name: str, source: str, rows: str, bias: bool | str) -> str:
    flag = " optional" if bias == "optional" else ""
    return f"{name}.bias{flag} : {rows} | hf {source}.bias" if bias else ""


def attention(
    at: str = "self_attn.", q: str = "q_proj", k: str = "k_proj", v: str = "v_proj", out: str = "out_proj",
    bias: bool | str = True,
) -> Roles:
    """Return queries, keys, values and output, each a matrix of its own."""
    names = zip(("attn_q", "attn_k", "attn_v", "attn_out"), (q, k, v, out), strict=True)
    return roles(*(linear(name, f"{at}{source}", WIDTH, WIDTH, bias) for name, source in names))


def fused(source: str, out: str, bias: bool | str = True) -> Roles:
    """Return queries, keys and values in one matrix, and the output."""
    return roles(linear("attn_qkv", source, f"3*{WIDTH}", WIDTH, bias), linear("attn_out", out, WIDTH, WIDTH, bias))


def cut(source: str, out: str, bias: bool | str = True) -> Roles:
    """Return queries, keys and values, three matrices of GGUF cut from one, and the output."""
    flag = " optional" if bias == "optional" else ""
    lines = [f"attn_{x}.weight : {WIDTH} {WIDTH} | hf {source}.weight @{x}" for x in "qkv"]
    lines += [f"attn_{x}.bias{flag} : {WIDTH} | hf {source}.bias @{x}" for x in "qkv"] if bias else []
    thirds: dict[str, Any] = {x: Split(f"{i}*{WIDTH}", f"{i + 1}*{WIDTH}") for i, x in enumerate("qkv")}
    return roles(roles("\n".join(lines), **thirds), linear("attn_out", out, WIDTH, WIDTH, bias))


def plain(up: str, down: str, bias: bool | str = True) -> Roles:
    """Return the feed-forward without a gate."""
    return roles(linear("ffn_up", up, "v_n_ff", WIDTH, bias), linear("ffn_down", down, WIDTH, "v_n_ff", bias))


def gated(gate: str, up: str, down: str, bias: bool | str = True) -> Roles:
    """Return the feed-forward with a gate."""
    return roles(linear("ffn_gate", gate, "v_n_ff", WIDTH, bias), plain(up, down, bias))


def patches(source: str, bias: bool = True) -> Roles:
    """Return the convolution that makes patches of a picture."""
    more = _bias("v.patch_embd", source, WIDTH, bias)
    return roles(f"v.patch_embd.weight plain : {WIDTH} 3 v_patch_size v_patch_size | hf {source}.weight\n{more}")


def table(source: str, more: str = "", flags: str = "f32") -> Roles:
    """Return the table of the positions of a whole picture; `more` is added to their number."""
    return roles(f"v.position_embd.weight {flags} : {PATCHES}{more} {WIDTH} | hf {source}.weight")


def usual(param: HParam, value: float) -> HParam:
    """Return the hparam with transformers' default, for configurations that do not state it."""
    return replace(param, defaults=(Default(value, "transformers' default", dialect="hf"),))


def inverse_of(ratio: str) -> Derivation:
    """Return the derivation of how many patches of a row are merged, of the ratio to which a row of them shrinks."""

    def patches_a_row(values: Values) -> int:
        return round(1 / float(values[ratio]))

    return patches_a_row


UNMERGED = Default(1, "readers of GGUF merge none where nothing says it", dialect="gguf")
"""Of a file without the key. It is always written, as shapes ask for it."""


def side_of_most_pixels(values: Values) -> int:
    """Return the side of the largest square picture."""
    return isqrt(values["v_max_pixels"])


TANH = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "quick_gelu": "quick_gelu"}
"""The activations of a tower whose GELU is the one by tanh, which is what llama.cpp's is (`clip.cpp`, FFN_GELU)."""


def activation(place: str = "vision_config.hidden_act", usual: str = "", **words: str) -> tuple[HParam, ...]:
    """Return what says the activation of the blocks, in a configuration and in GGUF.

    `words` are the configuration's, `usual` is what it means by none. GGUF has one word for both GELUs: a table knows
    that of its recipe alone.
    """
    known = words or {"silu": "silu", "gelu": "gelu", "quick_gelu": "quick_gelu"}
    defaults = (Default(usual, "transformers' default", dialect="hf"),) if usual else ()
    return (
        HParam("v_activation", None, clip.STRING, {"hf": place}, words=known, required=False, defaults=defaults),
        replace(clip.USE_GELU, derive=_is_gelu, absent=False),
        replace(clip.USE_SILU, derive=_is_silu, absent=False),
    )


def _is_gelu(values: Values) -> bool:
    return values.get("v_activation") in ("gelu", "gelu_tanh")


def _is_silu(values: Values) -> bool:
    return values.get("v_activation") == "silu"


ROPE = HParam(
    "v_rope_theta", None, clip.F32, {"hf": "vision_config.rope_parameters.rope_theta|vision_config.rope_theta"},
    words={10000: 10000.0}, required=False,
)
"""The base of a tower's rotation, for which GGUF has no key: all known ones have the same."""
AXIAL = IgnoredKey("vision_config.rope_parameters.rope_type", "rotated along two axes", ("axial", "default"))
COLORS = IgnoredKey(
    "vision_config.in_channels vision_config.in_chans vision_config.num_channels", "red, green, blue", (3,)
)
"""Keys that say what every tower of the kind has."""
TRAINED = IgnoredKey(
    "vision_config.initializer_range vision_config.initializer_factor vision_config.attention_dropout "
    "vision_config.hidden_dropout_prob vision_config.dropout vision_config.projector_dropout "
    "vision_config.projection_dropout vision_config.drop_path_rate vision_config.gradient_checkpointing",
    "used in training only",
)
SIZES = IgnoredKey(
    "preprocessor.size preprocessor.size.* preprocessor.crop_size preprocessor.crop_size.* preprocessor.min_pixels "
    "preprocessor.max_pixels preprocessor.patch_size preprocessor.merge_size preprocessor.temporal_patch_size "
    "preprocessor.image_seq_length preprocessor.image_token preprocessor.video_processor "
    "preprocessor.video_processor.* preprocessor.num_additional_image_tokens",
    "how large pictures may be: the runtime has limits of its own for this projector",
)
IGNORED_KEYS = (*clip.IGNORED_KEYS, COLORS, TRAINED, SIZES)


def pixels(low: str = "preprocessor.min_pixels", high: str = "preprocessor.max_pixels") -> tuple[HParam, ...]:
    """Return the limits of a picture's size in pixels, of processors that state them."""
    return (
        HParam("v_min_pixels", "vision.image_min_pixels", fields={"hf": f"{low}|preprocessor.size.shortest_edge"}),
        HParam("v_max_pixels", "vision.image_max_pixels", fields={"hf": f"{high}|preprocessor.size.longest_edge"}),
    )

NONE_MERGED = Caveat(
    "v_merge == 1",
    "llama.cpp (b11549) merges two patches a side or more, and ends where a model merges none",
    unsupported_by="llama.cpp",
)


def unbiased(place: str) -> tuple[HParam, Caveat]:
    """Return whether a projector's matrices have biases, as `place` says, and what llama.cpp does without them."""
    return (
        HParam("projector_biased", None, clip.BOOL, {"hf": place}, required=False),
        Caveat(
            "projector_biased == 0",
            "llama.cpp (b11549) reads biases of this projector, of which this one has none, and ends without them",
            unsupported_by="llama.cpp",
        ),
    )


STRETCHED = Caveat(
    "",
    "llama.cpp (b11549) stretches positions over pictures of other sizes than the table's by lines, the model by cubes",
    differs_in="llama.cpp",
)
SHIFTED = Caveat(
    "",
    "llama.cpp (b11549) puts the class token behind the patches and adds the positions in the order of the table, of "
    "which that of the class token is the first: every patch gets the position of the one before it",
    differs_in="llama.cpp",
)
