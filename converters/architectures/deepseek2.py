"""DeepSeek V2, V3 and R1, and models of their graph: Kimi K2, Moonlight, GLM-4.7-Flash, Youtu. Sources: `_deepseek`."""

from dataclasses import replace

from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"), latent_attention(halves="rope_halves"), deepseek.feed_forward(),
        nextn.tensors(),
    ),
)

HF = Dialect(
    "hf", conventions={"latent_kv": "joint"}, drops=nextn.dropped(deepseek.DROPS),
    caveats=(*deepseek.CAVEATS, rope.FRACTION_UNREAD), fixed={"n_head_kv": 1}, ignored_keys=deepseek.IGNORED_KEYS,
)
IGNORED = Caveat(
    "gating_stated != 'sigmoid' or selection_stated != 'noaux_tc'",
    "config.json says scoring_func={gating_stated} and topk_method={selection_stated}, which transformers' class "
    "does not read: the file has its sigmoid and noaux_tc",
)
# Of these classes one alone reads it, and GGUF has no place for a part of what is rotated.
FRACTION = replace(rope.DECLARED_FRACTION, check="fraction_stated == 1 or hf_class != 'Glm4MoeLiteForCausalLM'")
DECLARED = (
    HParam("gating_stated", None, ValueType.STRING, {"hf": "scoring_func"}, required=False,
           defaults=(Default("sigmoid", "DeepSeek-V3's", dialect="v3"),)),
    HParam("norm_stated", None, ValueType.BOOL, {"hf": "norm_topk_prob"}, required=False,
           defaults=(Default(False, "DeepSeek-V2's", dialect="v2"),)),
    HParam("selection_stated", None, ValueType.STRING, {"hf": "topk_method"}, required=False,
           defaults=(Default("noaux_tc", "DeepSeek-V3's", dialect="v3"),)),
)
NOT_NORMED = Caveat(
    "norm_stated == 1",
    "config.json says norm_topk_prob=true, which transformers' DeepSeek-V2 does not read: weights are not normed",
)
_SEEN = ("vision_tower.*", "mm_projector.*", "multi_modal_projector.*", "siglip2.*", "merger.*")

SPEC = Architecture(
    name="deepseek2", runtimes=("llama.cpp",),
    display_name="DeepSeek",
    hf_classes=(
        "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration", "YoutuForCausalLM", "YoutuVLForConditionalGeneration",
    ),
    hparams=(
        *nextn.counted(deepseek.SIZES), *deepseek.ROTARY_OF_EITHER, FRACTION,
        *deepseek.DENSE, *deepseek.ROUTING, deepseek.GATING,
        *DECLARED, *deepseek.PLAIN,
    ),
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="v2", names="hf", fields="hf", classes=("DeepseekV2ForCausalLM",),
            caveats=(*HF.caveats, NOT_NORMED), fixed={**HF.fixed, "expert_norm": False},
        ),
        # transformers' class reads neither key, the publisher's own refuses any other value: what it says is a note.
        replace(
            HF, name="v3", names="hf", fields="hf", classes=("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
            caveats=(*HF.caveats, IGNORED),
            fixed={**HF.fixed, "expert_gating": 2, "expert_selection": "noaux_tc"},
        ),
        replace(
            HF, name="text-half", names="hf", fields="hf", config_section=half.WITHIN, renames=half.RENAMES,
            classes=("KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration"),
            drops=(*nextn.dropped(deepseek.DROPS), *half.drop_vision(*_SEEN)),
            ignored_keys=(*HF.ignored_keys, half.VISION_KEYS),
        ),
        replace(
            HF, name="dense", names="hf", fields="hf", config_section=half.WITHIN, renames=half.RENAMES,
            classes=("YoutuForCausalLM", "YoutuVLForConditionalGeneration"),
            fixed={"n_head_kv": 1, "n_expert": 0, "n_shared": 0},
            drops=(*nextn.dropped(deepseek.DROPS), *half.drop_vision(*_SEEN)),
            ignored_keys=(*HF.ignored_keys, half.VISION_KEYS,
                IgnoredKey("embedding_initializer_range", "used before training")),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"attention": "latent"},
)
