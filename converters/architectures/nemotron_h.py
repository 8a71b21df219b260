"""Nemotron-H: Mamba-2, attention and feed-forward networks, one a block. Sources: `_nemotron_h`.

transformers' class also means the mixture; the weights tell which it is, not what a configuration repeats of the
class' defaults (today's convert_hf_to_gguf takes every model that transformers 5 saved for a mixture).
"""

from dataclasses import replace

from ggferry.converters.architectures import _nemotron_h as nemotron
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HF = Dialect(
    "hf",
    conventions=nemotron.CONVENTIONS,
    drops=nemotron.DROPS,
    caveats=(nemotron.SHORTEST,),
    classes=("NemotronHForCausalLM",),
    forbidden_tensors=("*.mixer.experts.*",),
    ignored_keys=(
        *nemotron.IGNORED_KEYS,
        IgnoredKey("moe_* n_group topk_group n_routed_experts n_shared_experts", "of a mixture: there are no experts"),
        IgnoredKey("norm_topk_prob routed_scaling_factor num_experts_per_tok", "of a mixture: there are no experts"),
    ),
)
SPEC = Architecture(
    name="nemotron_h", runtimes=("llama.cpp",),
    display_name="Nemotron-H",
    hf_classes=("NemotronHForCausalLM", "NemotronH_Nano_VL_V2"),
    hparams=(*nemotron.HPARAMS, nemotron.N_FF),
    roles=roles(
        nemotron.frame(),
        block(
            nemotron.mixers(),
            tensors.plain("mixer.", bias="mlp_bias == 1", when="n_ff > 0"),
            layer=nemotron.LAYER,
        ),
    ),
    dialects=(
        HF,
        replace(
            HF,
            name="seeing",
            names="hf",
            fields="hf",
            classes=("NemotronH_Nano_VL_V2",),
            config_section="llm_config",
            renames=(("language_model.", ""),),
            drops=(*HF.drops, *half.drop_vision("vision_model.*", "mlp1.*")),
            ignored_keys=(*HF.ignored_keys, half.VISION_KEYS),
        ),
    ),
    recipe=nemotron.RECIPE,
)
