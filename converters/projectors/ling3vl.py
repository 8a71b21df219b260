"""Ling 3's tower: Qwen3-VL's, whose squares of normed patches go through a network of the text model's width.

Source: vLLM (vllm-project/vllm at 54fc980c, `vllm/model_executor/models/bailing_moe_v3_vl.py`, `qwen3_vl.py`); SGLang
(sgl-project/sglang at 2f5edda9, `python/sglang/srt/models/bailing_mm_v3.py`), which may give rows unit length, as
llama.cpp cannot; llama.cpp `conversion/bailingmoe3.py`, `tools/mtmd/models/ling3vl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _deepstack as deepstack
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    deepstack.POSITIONS, replace(clip.V_IMAGE_SIZE, fields={}, derive=deepstack.image_size),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "rms_norm_eps"},
            defaults=(Default(1e-6, "vLLM: every norm of this tower", dialect="hf"),)),
    vit.ROPE, replace(qwen.MERGE, key="vision.spatial_merge_size"),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam("without_merger", None, clip.BOOL, {"hf": "vision_config.disable_merger_proj"}, words={True: True},
           required=False),
    HParam("unit_length", None, clip.BOOL, {"hf": "norm_query_embeds"}, words={False: False}, required=False),
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj", bias=True),
    vit.table("visual.pos_embed"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1"), vit.fused("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2"), vit.plain("mlp.linear_fc1", "mlp.linear_fc2"),
    ),
    vit.norm("mm.input_norm", "visual.merger.norm"),
    vit.linear("mm.0", "linear_proj.0", "v_projection", f"4*{vit.WIDTH}"),
    vit.linear("mm.2", "linear_proj.2", "v_projection", "v_projection"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="ling3vl",
    display_name="Ling 3, vision encoder",
    hf_classes=("BailingMoeV3VLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("ling3vl"),
            drops=(
                *clip.TEXT,
                Drop("model.word_embeddings.*", "of the text model"),
                Drop("visual.deepstack_merger_list.*", "of states that neither vLLM nor SGLang hands on"),
            ),
            renames=(*qwen.NAMES, ("model.linear_proj.", "linear_proj.")),
            nested=("vision_config",),
            ignored_keys=(
                *(key for key in qwen.IGNORED_KEYS if "out_hidden_size" not in key.keys),
                IgnoredKey("vision_config.image_size", "the table of positions says it"),
                IgnoredKey("vision_config.out_hidden_size", "of four patches side by side, or of the text model"),
                IgnoredKey("vision_config.deepstack_visual_indexes", "no state but the last is merged"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "qwen_vl", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "rope": "halves",
    },
)
