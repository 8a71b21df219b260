"""Qwen3-VL's tower, Qwen3.5's and Qwen4-Exp's: plain blocks with layer norms and stretched learned positions.
What some blocks return is merged, too, and goes to the first blocks of the text model (deepstack).

Source: transformers `Qwen3VLVisionModel`; llama.cpp `conversion/qwen3vl.py`, `tools/mtmd/models/qwen3vl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _deepstack as deepstack
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    deepstack.POSITIONS,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=deepstack.image_size),
    clip.V_PATCH_SIZE,
    clip.V_N_EMBD,
    clip.V_N_FF,
    qwen.N_LAYER,
    qwen.N_HEAD,
    *clip.COLORS,
    qwen.EPS,
    vit.ROPE,
    replace(qwen.MERGE, key="vision.spatial_merge_size"),
    *vit.activation(**vit.TANH),
    *deepstack.BLOCKS,
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj", bias=True),
    vit.table("visual.pos_embed"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1"),
        vit.fused("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2"),
        vit.plain("mlp.linear_fc1", "mlp.linear_fc2"),
    ),
    roles(
        """
        norm.weight f32 : 4*v_n_embd              | hf norm.weight
        norm.bias       : 4*v_n_embd              | hf norm.bias
        fc1.weight      : 4*v_n_embd 4*v_n_embd   | hf linear_fc1.weight
        fc1.bias        : 4*v_n_embd              | hf linear_fc1.bias
        fc2.weight      : v_projection 4*v_n_embd | hf linear_fc2.weight
        fc2.bias        : v_projection            | hf linear_fc2.bias
        """,
        when="v_deepstack == 1",
        under={"gguf": "v.deepstack.{n}.", "hf": "visual.deepstack_merger_list.{n}."},
    ),
    vit.norm("v.post_ln", "visual.merger.norm"),
    qwen.merger("visual.merger.linear_fc1", "visual.merger.linear_fc2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen3vl_merger",
    display_name="Qwen3-VL, vision encoder",
    hf_classes=(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
        "ClefModel",  # this and the next two: llama.cpp's names for folders of Qwen3.5 with a head that chooses
        "OpenJevModel",
        "PplxDeciderModel",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, "v.deepstack.": "deepstack_end"},
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("qwen3vl_merger"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            renumbered=(("visual.deepstack_merger_list.", "deepstack_blocks"),),
            nested=("vision_config",),
            ignored_keys=(
                *qwen.IGNORED_KEYS,
                IgnoredKey("vision_config.image_size", "the table of positions says it"),
            ),
        ),
    ),
    recipe={
        "computation": "projector",
        "vision": "qwen_vl",
        "norm": "layer",
        "ffn": "plain",
        "activation": "gelu_tanh",
        "rope": "halves",
    },
)
