"""Mamba-2: a state space with heads, which share their selections in groups.

Sources: `_mamba`. In GGUF `ssm.time_step_rank` counts the heads, and the norm after the state space has a row a group.
"""

from dataclasses import replace

from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _mamba as mamba
from ggferry.converters.schema.architecture import Architecture, Default, HParam
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles

_COLUMN = Reshape(("n_heads", 1), back=("n_heads",))

HPARAMS = (
    *mamba.SIZES,
    HParam("n_heads", "ssm.time_step_rank", fields={"hf": "num_heads"}, check="0 < n_heads and n_inner % n_heads == 0"),
    HParam("n_group", "ssm.group_count", fields={"hf": "n_groups|ngroups", "state-spaces": "ssm_cfg.ngroups"},
           defaults=(Default(1, "state-spaces' default", dialect="state-spaces"),),
           check="0 < n_group and n_heads % n_group == 0"),
    mamba.N_STATE,
    mamba.EPS,
    *hybrid.time_steps({"hf": "time_step_limit", "state-spaces": "ssm_cfg.dt_limit"}),
    *mamba.PLAIN,
    replace(mamba.TIED, defaults=(Default(False, "transformers' default", dialect="hf"), mamba.TIED.defaults[1])),
)

ROLES = roles(
    mamba.FRAME,
    block(
        """
        ssm_in.weight         : 2*n_inner+2*n_group*n_state+n_heads n_embd | hf in_proj.weight
        ssm_conv1d.weight f32 : n_inner+2*n_group*n_state n_conv           | hf conv1d.weight @conv
        ssm_conv1d.bias when=conv_bias == 1 : n_inner+2*n_group*n_state    | hf conv1d.bias
        ssm_dt.bias           : n_heads                                    | hf dt_bias
        ssm_a f32             : n_heads 1                                  | hf A_log @rate
        ssm_d f32             : n_heads 1                                  | hf D @column
        ssm_norm.weight f32   : n_group n_inner/n_group                    | hf norm.weight @groups
        """,
        layer=mamba.MIXER, conv=mamba.CONV, rate=Then(_COLUMN, NEG_EXP), column=_COLUMN,
        groups=Reshape(("n_group", "n_inner / n_group"), back=("n_inner",)),
    ),
)

SPEC = Architecture(
    name="mamba2", runtimes=("llama.cpp",),
    display_name="Mamba-2",
    hf_classes=("Mamba2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        mamba.HF,
        replace(
            mamba.STATE_SPACES,
            required_tensors=(*mamba.STATE_SPACES.required_tensors, "backbone.layers.0.mixer.dt_bias")
        ),
    ),
    recipe=mamba.RECIPE,
)
