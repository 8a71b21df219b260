"""GLM-5: latent attention to what an indexer chooses, which in some blocks is the last one's choice.

Sources: `_deepseek`, `_indexer`; llama.cpp `conversion/glm.py`.
"""

from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

MULTIPLIER = Caveat(
    "yarn_log_mul != 0",
    "yarn's multiplier {yarn_log_mul}: written, but llama.cpp does not read it for glm-dsa",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="glm-dsa", runtimes=("llama.cpp",),
    display_name="GLM-5",
    hf_classes=("GlmMoeDsaForCausalLM",),
    hparams=(
        *nextn.counted(deepseek.SIZES), *deepseek.ROTARY, *deepseek.DENSE, *deepseek.ROUTING, deepseek.GATING,
        *index.HPARAMS, *index.SHARED, *deepseek.PLAIN,
    ),
    roles=roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            latent_attention(),
            index.indexer(when="index_full == 1 or n >= n_layer"),
            deepseek.feed_forward(),
            nextn.tensors(),
        ),
    ),
    dialects=(
        Dialect(
            "hf", conventions={"latent_kv": "joint"}, drops=nextn.dropped(deepseek.DROPS),
            # transformers' class reads neither of the latter two keys.
            fixed={"n_head_kv": 1, "expert_gating": 2, "expert_selection": "noaux_tc"},
            caveats=(*deepseek.CAVEATS, index.WIDTH, deepseek.LOW_RANK, MULTIPLIER),
            ignored_keys=(*deepseek.IGNORED_KEYS, IgnoredKey("indexer_rope_interleave", "always so", (True,))),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"attention": "latent", "indexer_rope": "pairs"},
)
