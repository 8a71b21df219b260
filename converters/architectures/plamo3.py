"""PLaMo 3 (Preferred Networks, NICT): norms before and behind both branches, and of queries and keys head by head;
blocks with a window, which have a rotary base of their own.

Source: llama.cpp `src/models/plamo3.cpp`, `conversion/plamo.py`; SGLang's `plamo3.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _plamo as plamo
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.block_patterns import window_layers
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
HPARAMS = (
    *common.SIZES[:7],
    replace(common.HEAD_DIM, implied=""), replace(common.HEAD_DIM_V, implied=""), common.RMS_EPS,
    replace(common.N_SWA, fields={"hf": "window_size|sliding_window"}), common.LAYER_WINDOWS,
    replace(common.WINDOW_PERIOD, check="0 < window_period"),
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=window_layers,
           implied="each (n + 1) % 8 != 0", length="n_layer", required=False),
    rope.BASE, replace(laguna.BASE_OF_WINDOWS,
                       fields={"hf": "rope_parameters.sliding_attention.rope_theta|rope_local_theta"}),
    # A stretched rotation, which PLaMo 3 says in keys of its own, is refused: its range is not rounded.
    HParam("rope_stretched", None, common.F32, {"hf": "rope_scaling_factor"}, words={1: 1.0}, required=False),
    rope.N_ROT, rope.KIND, laguna.PLAIN_WINDOWS, *rope.SCALING, common.ALWAYS_TIED, common.ATTENTION_BIAS, common.SILU,
)

ROWS = "n_head*head_dim+n_head_kv*head_dim+n_head_kv*head_dim_v"
ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        plamo.norms(),
        tensors.fused_attention("mixer.qkv_proj", "mixer.o_proj", rows=ROWS, columns="n_head*head_dim_v"),
        tensors.qk_norm("mixer.", layout=ADD_ONE),
        plamo.network(),
        layer="model.layers.layers.{n}.",
    ),
)

SPEC = Architecture(
    name="plamo3", runtimes=("llama.cpp",),
    display_name="PLaMo 3",
    hf_classes=("Plamo3ForCausalLM", "PLaMo3ForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"norm_offset": 1.0, "post_norms": "fifths"},
            drops=plamo.DROPS,
            caveats=(*rope.CAVEATS, common.NO_WINDOW),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused", "ffn": "fused"},
)
