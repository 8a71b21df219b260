"""GLM-4V's tower: hparams and roles, which GLM-5.3's shares."""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, clip.V_IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD,
    clip.V_N_FF, qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "vision_config.rms_norm_eps"}),
    vit.ROPE, qwen.MERGE, *vit.activation(),
    HParam("n_inner", None, fields={}, required=False),
    HParam("n_block_ff", None, fields={}, required=False),
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj", bias=True),
    "v.norm_embd.weight f32 optional : v_n_embd | hf visual.post_conv_layernorm.weight",
    vit.table("visual.embeddings.position_embedding", flags="f32 optional"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False), vit.fused("attn.qkv", "attn.proj", bias="optional"),
        "attn_q_norm.weight f32 optional : v_n_embd/v_n_head | hf attn.q_norm.weight",
        "attn_k_norm.weight f32 optional : v_n_embd/v_n_head | hf attn.k_norm.weight",
        vit.norm("ln2", "norm2", bias=False),
        *(vit.linear(name, f"mlp.{source}", *shape, bias="optional") for name, source, shape in (
            ("ffn_gate", "gate_proj", ("n_block_ff", vit.WIDTH)), ("ffn_up", "up_proj", ("n_block_ff", vit.WIDTH)),
            ("ffn_down", "down_proj", (vit.WIDTH, "n_block_ff")),
        )),
    ),
    vit.norm("v.post_ln", "visual.post_layernorm", bias=False),
    "mm.patch_merger.weight plain : v_projection v_n_embd 2 2 | hf visual.downsample.weight",
    "mm.patch_merger.bias : v_projection | hf visual.downsample.bias",
    vit.linear("mm.model.fc", "visual.merger.proj", "v_projection", "v_projection", bias=False),
    vit.norm("mm.post_norm", "visual.merger.post_projection_norm", width="v_projection"),
    vit.linear("mm.gate", "visual.merger.gate_proj", "n_inner", "v_projection", bias=False),
    vit.linear("mm.up", "visual.merger.up_proj", "n_inner", "v_projection", bias=False),
    vit.linear("mm.down", "visual.merger.down_proj", "v_projection", "n_inner", bias=False),
)
