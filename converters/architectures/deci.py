"""DeciLM: LLaMA, of whose blocks each shares its keys and values among as many heads as it likes.

Sources: llama.cpp `src/models/deci.cpp`, `conversion/deci.py`; the publisher's `modeling_decilm.py`. Nemotron 51B and
253B, whose blocks may lack attention or a feed-forward network (`block_configs`), are refused.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HEADS_KV = HParam(
    "n_head_kv", "attention.head_count_kv", ValueType.INT32,
    {"hf": "num_key_value_heads_per_layer|num_key_value_heads"}, length="n_layer", allow_scalar=True,
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, HEADS_KV, common.HEAD_DIM,
    common.HEAD_DIM_V, common.RMS_EPS, *rope.LLAMA3_ROPE, common.TIED,
    HParam("own_blocks", None, fields={"hf": "block_configs"}, words={None: None}, length="0", required=False),
    common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(tensors.pre_norm(tensors.paired_attention(), tensors.gated())),
)

SPEC = Architecture(
    name="deci", runtimes=("llama.cpp",),
    display_name="DeciLM",
    hf_classes=("DeciLMForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", conventions={"rope": "halves"}, drops=common.DROPS, caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED,)
        ),
    ),
    recipe={"rope": "pairs"},
)
