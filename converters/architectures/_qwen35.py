"""What Qwen3.5 and its mixture share: a gated delta net whose heads of values GGUF tiles.

Hugging Face keeps the heads of values that share a key one after the other; GGUF deals them out in turn, so that a
runtime repeats the keys as a whole (llama.cpp `conversion/qwen.py`, `_LinearAttentionVReorderBase`). Positions of text
are one number; the sections of its rotary positions are for images.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Default, Dialect, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import Rearrange, TrailingBlocks
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import Roles, roles
from ggferry.formats.gguf.values import ValueType


def sections(values: Values) -> tuple[int, ...]:
    """rope.dimension_sections: of time, height and width, and a fourth that llama.cpp reads."""
    declared = tuple(values.get("sections_stated", (11, 11, 10)))
    return (*declared, *[0] * (4 - len(declared)))


HPARAMS = (
    *delta.HPARAMS,
    HParam("sections_stated", None, length="3", required=False,
           fields={"hf": "rope_parameters.mrope_section|rope_scaling.mrope_section"}),
    HParam("sections", "rope.dimension_sections", ValueType.INT32, length="4", derive=sections,
           defaults=(Default((11, 11, 10, 0), "transformers' default"),)),
    HParam("sections_dealt", None, ValueType.BOOL, words={True: True}, required=False,
           fields={"hf": "rope_parameters.mrope_interleaved|rope_scaling.mrope_interleaved"}),
)

_AXES = (("g", "n_group"), ("r", "n_heads / n_group"))
HEADS = Rearrange("(g r) -> (r g)", _AXES)
VALUES = Rearrange("(g r d) -> (r g d)", _AXES)
CHANNELS = TrailingBlocks("2 * n_group * n_state", VALUES)

_PROJECTIONS = """
attn_qkv.weight  : 2*n_group*n_state+n_inner n_embd | hf linear_attn.in_proj_qkv.weight @channels
attn_gate.weight : n_inner n_embd                   | hf linear_attn.in_proj_z.weight @values
ssm_beta.weight  : n_heads n_embd                   | hf linear_attn.in_proj_b.weight @heads
ssm_alpha.weight : n_heads n_embd                   | hf linear_attn.in_proj_a.weight @heads
ssm_out.weight   : n_embd n_inner                   | hf linear_attn.out_proj.weight @columns
"""
PROJECTIONS: Roles = roles(
    _PROJECTIONS, when="recurrent == 1", channels=CHANNELS, values=VALUES, heads=HEADS, columns=Columns(VALUES)
)


def delta_net() -> tuple[Role, ...]:
    """Return the roles of a block of linear attention but for PROJECTIONS."""
    return delta.delta_net(heads=HEADS, conv=CHANNELS)


RECIPE: Conventions = {**delta.RECIPE, "delta_values": "tiled"}
HF = Dialect(
    "hf",
    conventions={**delta.CONVENTIONS, "delta_values": "grouped"},
    drops=(
        *delta.DROPS, *common.DROPS,
        *half.drop_vision("model.visual.*", "visual.*", "model.vision_tower.*", "model.merger.*"),
    ),
    appended_blocks=delta.APPENDED,
    export_renames=delta.EXPORTED,
    caveats=delta.CAVEATS,
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(
        *delta.IGNORED_KEYS,
        half.VISION_KEYS,
        IgnoredKey("language_model_only downsample_mode insert_layer_id merger_times drop_vision_last_layer image_size "
                 "merge_kernel_size patch_size", "of the vision half"),
    ),
)
