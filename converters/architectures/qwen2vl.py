"""Qwen2-VL and Qwen2.5-VL, the text half: Qwen2 with positions along three axes, which for text are one.

Source: llama.cpp `src/models/qwen2vl.cpp`, `conversion/qwenvl.py`, transformers `modeling_qwen2_vl.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE_OF_AXES, *common.QWEN_WINDOWS, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.attention(bias=True), tensors.gated())),
)

EPSILON = Caveat(
    "eps > 0",
    "llama.cpp runs this differently: it never reads this family's epsilon, {eps}, and takes 0",
    differs_in="llama.cpp",
)

HF = Dialect(
    "hf",
    drops=(*common.DROPS, *half.drop_vision("visual.*", "model.visual.*")),
    caveats=(*rope.CAVEATS, common.WINDOW),
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(half.VISION_KEYS,),
)

SPEC = Architecture(
    name="qwen2vl", runtimes=("llama.cpp",),
    display_name="Qwen2-VL",
    hf_classes=(
        "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLModel", "Qwen2_5OmniModel",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="omni", names="hf", fields="hf", classes=("Qwen2_5OmniModel",),
            config_section="thinker_config.text_config", nested=("thinker_config",), renames=(("thinker.", ""),),
            drops=(*HF.drops, *half.drop_audio("audio_tower.*"), *half.drop_talker("talker.*", "token2wav.*")),
            ignored_keys=(*HF.ignored_keys, half.THINKERS),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(EPSILON, common.heads_as_wide_as_the_model("qwen2vl")),
)
