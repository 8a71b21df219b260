"""Kimi-VL's tower (MoonViT): Kimi K2.5's of one frame; in GGUF queries, keys and values are apart, the table is flat.

Source: the publisher's `modeling_kimi_vl.py`, as vLLM has it (vllm-project/vllm at 055e47c2,
`vllm/model_executor/models/moonvit.py`, `Rope2DPosEmb`: pairs of a head turn with column and row in turn); llama.cpp
`conversion/kimivl.py`, `tools/mtmd/models/kimivl.cpp`, whose graph wants all pairs of one axis before the other's. Its
own converter (b11549) leaves queries and keys in the publisher's order, which makes another model.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _kimi as kimi
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles

_TABLE = "vision_config.init_pos_emb_"
HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=kimi.image_size),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={}, defaults=(Default(kimi.LAYER_NORM, "torch.nn.LayerNorm's, all norms of it"),)),
    HParam("positions_high", None, fields={"hf": f"{_TABLE}height"}, required=False),
    HParam("positions_wide", None, fields={"hf": f"{_TABLE}width"}, required=False,
           check="positions_wide == positions_high"),
    HParam("merges", None, fields={"hf": "vision_config.merge_kernel_size"}, length="2", required=False),
    HParam("v_merge", "vision.projector.scale_factor", derive=kimi.side, check="0 < v_merge"),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
)

_SQUARE = "v_n_embd*v_merge*v_merge"
ROLES = roles(
    vit.patches("vision_tower.patch_embed.proj"),
    roles(
        f"v.position_embd.weight f32 : {vit.PATCHES} v_n_embd | hf vision_tower.patch_embed.pos_emb.weight @flat",
        flat=Reshape((vit.PATCHES, "v_n_embd")),
    ),
    vit.blocks(
        "vision_tower.encoder.blocks.{n}.",
        vit.norm("ln1", "norm0"), kimi.queries_keys_values("wqkv"), vit.linear("attn_out", "wo", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "norm1"), vit.plain("mlp.fc0", "mlp.fc1"),
    ),
    vit.norm("v.post_ln", "vision_tower.encoder.final_layernorm"),
    vit.norm("mm.input_norm", "multi_modal_projector.pre_norm"),
    vit.linear("mm.1", "multi_modal_projector.linear_1", _SQUARE, _SQUARE),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", _SQUARE),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="kimivl",
    display_name="Kimi-VL, vision encoder",
    hf_classes=("KimiVLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"axes": "in_turn", "qkv": "fused"},
            fixed=clip.vision_fixed("kimivl"),
            drops=clip.TEXT,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("preprocessor.in_token_limit preprocessor.merge_kernel_size preprocessor.num_pooled_tokens "
                         "preprocessor.pad_input",
                         "how large pictures may be: the runtime has limits of its own for this projector"),
            ),
        ),
    ),
    caveats=(vit.STRETCHED, vit.NONE_MERGED),
    recipe={
        "computation": "projector", "vision": "kimi", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "rope": "pairs",
    },
)
