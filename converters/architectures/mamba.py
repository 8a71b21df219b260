"""Mamba and Falcon Mamba: blocks of a short convolution and a state space that the input selects from.

Sources: `_mamba`; transformers `modeling_falcon_mamba.py`: Falcon norms the time step and both selections, with an
epsilon of their own that llama.cpp has no key for.
"""

from dataclasses import replace

from ggferry.converters.architectures import _mamba as mamba
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, HParam
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
_FALCON = "hf_class == 'FalconMambaForCausalLM'"

HPARAMS = (
    *mamba.SIZES, mamba.N_STATE,
    HParam("dt_rank", "ssm.time_step_rank"),  # a configuration may say "auto": the tensors say what that was
    mamba.EPS,
    HParam("dt_b_c_rms", "ssm.dt_b_c_rms", BOOL,
           defaults=(Default(True, "Falcon Mamba norms them", when=_FALCON), Default(False, "Mamba norms none"))),
    HParam("mixer_eps", "ssm.dt_b_c_rms_epsilon", F32, {"hf": "mixer_rms_eps"}, required=False,
           defaults=(Default(1e-6, "transformers' default", when=_FALCON, dialect="hf"),)),
    *mamba.PLAIN,
    mamba.TIED,
)

ROLES = roles(
    mamba.FRAME,
    block(
        """
        ssm_in.weight         : 2*n_inner n_embd          | hf in_proj.weight
        ssm_conv1d.weight f32 : n_inner n_conv            | hf conv1d.weight @conv
        ssm_conv1d.bias when=conv_bias == 1 : n_inner     | hf conv1d.bias
        ssm_x.weight          : dt_rank+2*n_state n_inner | hf x_proj.weight
        ssm_dt.weight         : n_inner dt_rank           | hf dt_proj.weight
        ssm_dt.bias           : n_inner                   | hf dt_proj.bias
        ssm_a f32             : n_inner n_state           | hf A_log @rate
        ssm_d f32             : n_inner                   | hf D
        """,
        layer=mamba.MIXER, conv=mamba.CONV, rate=NEG_EXP,
    ),
)

EPSILONS = Caveat(
    "dt_b_c_rms == 1",
    "llama.cpp norms the time step and the selections with the epsilon of the other norms ({eps}); the model's is "
    "{mixer_eps}, kept as mamba.ssm.dt_b_c_rms_epsilon",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="mamba", runtimes=("llama.cpp",),
    display_name="Mamba",
    hf_classes=("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        replace(mamba.HF, caveats=(*mamba.HF.caveats, mamba.EXPANSION, EPSILONS)),
        replace(
            mamba.STATE_SPACES,
            caveats=(*mamba.STATE_SPACES.caveats, mamba.EXPANSION),
            required_tensors=(*mamba.STATE_SPACES.required_tensors, "backbone.layers.0.mixer.x_proj.weight"),
        ),
    ),
    recipe=mamba.RECIPE,
)
