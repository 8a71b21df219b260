"""HunYuan-VL and HunyuanOCR, the text half: Hunyuan's dense model with positions along several axes, which for text are
one.

Sources: `_hunyuan`; llama.cpp `src/models/hunyuan-vl.cpp`; transformers `modeling_hunyuan_vl.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _hunyuan as hunyuan
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

_AXES = f"{rope.scaling_place('xdrope_section')}|{rope.scaling_place('mrope_section')}"
HPARAMS = (
    *(replace(param, words={**param.words, "xdrope": "dynamic"}) if param.name == "kind_stated" else param
      for param in hunyuan.HPARAMS),
    replace(rope.SECTIONS_DECLARED, fields={"hf": _AXES}, length="4"), rope.SECTIONS,
    HParam("fourth_axis", None, derive=hunyuan.fourth_axis),
)
(_HF,) = hunyuan.dialects(
    "hunyuan_vl",
    half.VISION_KEYS,
    IgnoredKey("num_experts moe_topk num_shared_expert", "there are no experts", (1,)),
    IgnoredKey("moe_* norm_topk_prob routed_scaling_factor n_group topk_group use_mixed_mlp_moe", "of experts"),
    IgnoredKey("tie_word_embeddings", "what the whole model says wins", (False, True)),
)

FOURTH = Caveat(
    "fourth_axis > 0",
    "llama.cpp runs this differently: it gives text positions on three axes and 0 on the fourth, by which "
    "{fourth_axis} pairs of each head of this model turn",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="hunyuan_vl", runtimes=("llama.cpp",),
    display_name="HunYuan-VL",
    hf_classes=("HunYuanVLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=roles(tensors.embedding(), block(hunyuan.attention(), tensors.gated())),
    dialects=(
        replace(
            _HF, config_section=half.WITHIN, renames=half.RENAMES,
            drops=(*_HF.drops, *half.drop_vision("vit.*", "model.vit.*", "model.visual.*", "visual.*")),
        ),
    ),
    recipe={"rope": "halves", "qk_norm_at": "after"},
    caveats=(FOURTH,),
)
