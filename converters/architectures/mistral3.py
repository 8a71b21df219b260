"""Mistral Small 3.1 and Ministral 3: LLaMA, whose queries grow with their position where the configuration says so.

Source: llama.cpp `src/models/mistral3.cpp`, `conversion/mistral3.py`, transformers `modeling_ministral3.py`. Of a
vision model the text half is taken.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.derivations import plain_yarn_log_multiplier
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_BETA = "rope_parameters.llama_4_scaling_beta|rope_scaling.llama_4_scaling_beta"
TEMPERATURE = (
    HParam("temperature_scale", "attention.temperature_scale", ValueType.FLOAT32, {"hf": _BETA}, absent=0.0),
    HParam("temperature_length", None, derive="rope_original", required=False),
    HParam("yarn_log_mul", "rope.scaling.yarn_log_multiplier", ValueType.FLOAT32, derive=plain_yarn_log_multiplier,
           absent=0.0, check="yarn_log_mul == 0 or yarn_log_mul == 1"),
)
HPARAMS = (
    *common.SIZES, common.RMS_EPS, *TEMPERATURE, *rope.ROPE, common.N_SWA, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.paired_attention(), tensors.gated())),
)

SPEC = Architecture(
    name="mistral3", runtimes=("llama.cpp",),
    display_name="Mistral 3",
    hf_classes=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=(*common.DROPS, *half.drop_vision("*vision_tower.*", "*multi_modal_projector.*")),
            caveats=(*rope.CAVEATS, common.WINDOW),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            ignored_keys=(
                common.UNBIASED,
                half.VISION_KEYS,
                IgnoredKey("rope_parameters.max_position_embeddings", "repeats max_position_embeddings"),
                IgnoredKey("multimodal_projector_bias projector_hidden_act spatial_merge_size", "of the vision half"),
            ),
        ),
    ),
    recipe={"rope": "pairs", "temperature": "all"},
)
SPEC = half.with_base(SPEC, "Ministral3Model")
