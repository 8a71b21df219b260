"""DeepSeek V2, V3 and R1, and models of their graph: Kimi K2, Moonlight, GLM-4.7-Flash, Youtu. Sources: `_deepseek`."""

from dataclasses import replace

from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_half as half
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless
from ggferry.converters.schema.roles import block, roles

ROLES = roles(
    tensors.embedding(),
    block(tensors.norm("attn_norm", "input_layernorm"), latent_attention(), deepseek.feed_forward(), nextn.tensors()),
)

HF = Dialect(
    "hf", conventions={"latent_kv": "joint"}, drops=nextn.dropped(deepseek.DROPS), remarks=deepseek.REMARKS,
    given={"n_head_kv": 1}, harmless=deepseek.HARMLESS,
)  # fmt: skip
_SEEN = ("vision_tower.*", "mm_projector.*", "multi_modal_projector.*", "siglip2.*", "merger.*")

SPEC = Architecture(
    name="deepseek2",
    display_name="DeepSeek",
    hf_classes=(
        "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration", "YoutuForCausalLM", "YoutuVLForConditionalGeneration",
    ),
    hparams=(
        *nextn.counted(deepseek.SIZES), *deepseek.ROTARY, *deepseek.DENSE, *deepseek.ROUTING, deepseek.GATING,
        *deepseek.PLAIN
    ),
    roles=ROLES,
    dialects={
        "hf": HF,
        "text-half": replace(
            HF, name="text-half", names="hf", fields="hf", within=half.WITHIN, renames=half.RENAMES,
            classes=("KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration"),
            drops=(*nextn.dropped(deepseek.DROPS), *half.unseen(*_SEEN)), harmless=(*HF.harmless, half.VISION_KEYS),
        ),
        "dense": replace(
            HF, name="dense", names="hf", fields="hf", within=half.WITHIN, renames=half.RENAMES,
            classes=("YoutuForCausalLM", "YoutuVLForConditionalGeneration"),
            given={"n_head_kv": 1, "n_expert": 0, "n_shared": 0},
            drops=(*nextn.dropped(deepseek.DROPS), *half.unseen(*_SEEN)),
            harmless=(*HF.harmless, half.VISION_KEYS, Harmless("embedding_initializer_range", "used before training")),
        ),
        "gguf": Dialect("gguf"),
    },
    blocks=nextn.BLOCKS,
    remarks=(nextn.REMARK,),
    recipe={"attention": "latent"},
)  # fmt: skip
