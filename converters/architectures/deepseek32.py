"""DeepSeek-V3.2: V3 whose attention looks only at what an indexer chooses. Sources: `_deepseek`, `_indexer`."""

from dataclasses import replace

from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="deepseek32", runtimes=("llama.cpp",),
    display_name="DeepSeek-V3.2",
    hf_classes=("DeepseekV32ForCausalLM",),
    hparams=(
        *nextn.counted(deepseek.SIZES), *deepseek.ROTARY, *deepseek.DENSE, *deepseek.ROUTING,
        replace(deepseek.GATING, required=True),
        *index.HPARAMS, *deepseek.PLAIN,
    ),
    roles=roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            latent_attention(),
            index.indexer(),
            deepseek.feed_forward(),
            nextn.tensors(),
        ),
    ),
    dialects=(
        Dialect(
            "hf", conventions={"latent_kv": "joint"}, drops=nextn.dropped(deepseek.DROPS),
            fixed={"n_head_kv": 1, "expert_gating": 2, "expert_selection": "noaux_tc"},
            ignored_keys=deepseek.IGNORED_KEYS, caveats=(*deepseek.CAVEATS, index.WIDTH, deepseek.LOW_RANK),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"attention": "latent", "indexer_rope": "halves"},
)
