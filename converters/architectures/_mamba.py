"""What Mamba and Mamba-2 share: the names of transformers and of state-spaces' own checkpoints, and the frame around
the state space.

Sources: llama.cpp `src/models/mamba{,2}.cpp`, `mamba-base.cpp`, `conversion/mamba.py`; transformers
`modeling_mamba{,2}.py`; state-spaces/mamba `mixer_seq_simple.py`, whose config.json names no class. GGUF stores
A = -exp(A_log).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _recurrent as recurrent
from ggferry.converters.schema.architecture import Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Squeeze
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
CONV = Squeeze(1)
RECIPE: Conventions = {"computation": "mamba", "decay": "rate"}

N_STATE = HParam("n_state", "ssm.state_size", fields={"hf": "state_size|d_state", "state-spaces": "ssm_cfg.d_state"})
TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings", "state-spaces": "tie_embeddings"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),
              Default(True, "state-spaces' default", dialect="state-spaces")),
)
SIZES = (
    common.N_VOCAB, recurrent.NO_LIMIT,
    HParam("n_embd", "embedding_length", fields={"hf": "hidden_size|d_model", "state-spaces": "d_model"}),
    recurrent.NO_FF, recurrent.NO_HEADS,
    HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers|n_layer", "state-spaces": "n_layer"}),
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "conv_kernel|d_conv", "state-spaces": "ssm_cfg.d_conv"}),
    HParam("n_inner", "ssm.inner_size", fields={"hf": "intermediate_size|d_inner"}),
    HParam("rescaled", None, BOOL, {"hf": "rescale_prenorm_residual"}, required=False),
)
EPS = HParam(
    "eps", "attention.layer_norm_rms_epsilon", F32, {"hf": "layer_norm_epsilon|rms_norm_eps"},
    defaults=(Default(1e-5, "transformers' default, and state-spaces'"),),
)
# Only what llama.cpp's graph can say.
PLAIN = (
    common.SILU,
    HParam("projection_bias", None, BOOL, {"hf": "use_bias", "state-spaces": "ssm_cfg.bias"}, words={False: False},
           required=False),
    HParam("conv_bias", None, BOOL, {"hf": "use_conv_bias", "state-spaces": "ssm_cfg.conv_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),
                     Default(True, "state-spaces' default", dialect="state-spaces"))),
    HParam("rms_norm", None, BOOL, {"state-spaces": "rms_norm"}, words={True: True}, required=False),
)

FRAME = roles("""
token_embd.weight             : n_vocab n_embd | hf backbone.embeddings.weight
output_norm.weight f32        : n_embd         | hf backbone.norm_f.weight
output.weight when=tied == 0    : n_vocab n_embd | hf lm_head.weight
blk.{n}.attn_norm.weight f32  : n_embd         | hf backbone.layers.{n}.norm.weight
blk.{n}.ssm_out.weight        : n_embd n_inner | hf backbone.layers.{n}.mixer.out_proj.weight
""")
MIXER = "backbone.layers.{n}.mixer."

EXPANSION = Caveat(
    "n_inner != 2 * n_embd",
    "the state space is {n_inner} wide for a model of {n_embd}; llama.cpp loads twice that only",
)
UNBIASED = Caveat(
    "conv_bias == 0", "short convolutions without biases: llama.cpp expects them in Mamba's", unsupported_by="llama.cpp"
)
# It scales weights before training: in those of a checkpoint that is done.
RESCALED = Caveat(
    "rescaled == 1",
    "rescale_prenorm_residual is true: the weights of the outputs of state spaces are written as they are stored; "
    "transformers 5.23 divides them by the root of the number of blocks, {n_layer}, whenever it loads them",
    differs_in="transformers",
)
_BEFORE = "used before training only"
_HOW = "how it is computed, not what"
IGNORED_KEYS = (
    IgnoredKey("expand time_step_rank head_dim hidden_ratio", "the tensors say it"),
    IgnoredKey("expand", "how much wider the state space is", follows="@space_expansion"),
    IgnoredKey("time_step_rank", "the rank of the time step", follows="@step_rank"),
    IgnoredKey("head_dim", "the width of a head", follows="@space_head"),
    IgnoredKey("time_step_m* time_step_scale time_step_init_scheme time_step_floor", _BEFORE),
    IgnoredKey("residual_in_fp32 use_associative_scan use_mambapy chunk_size fused_add_norm", _HOW),
    IgnoredKey("rms_norm", "every norm is", (True,)),
    IgnoredKey("norm_before_gate", "read by nobody"),  # Mamba-Codestral's; transformers gates first whatever it says
)
# state-spaces' MambaConfig, and the arguments of its Mamba2 (mamba_ssm `modules/mamba2.py`).
STATE_SPACES_IGNORED_KEYS = (
    IgnoredKey("residual_in_fp32 fused_add_norm", _HOW),
    IgnoredKey("pad_vocab_size_multiple ssm_cfg.layer ssm_cfg.expand ssm_cfg.headdim", "the tensors say it"),
    IgnoredKey("ssm_cfg.dt_min ssm_cfg.dt_max ssm_cfg.dt_init* ssm_cfg.dt_scale ssm_cfg.A_init_range", _BEFORE),
    IgnoredKey("ssm_cfg.chunk_size ssm_cfg.use_mem_eff_path ssm_cfg.use_fast_path", _HOW),
    IgnoredKey("d_intermediate", "no feed-forward half", (0,)),
    IgnoredKey("attn_layer_idx", "no block attends", ([],)),
    IgnoredKey("attn_cfg", "no block attends", ({},)),
    IgnoredKey("ssm_cfg.rmsnorm", "every norm is", (True,)),
    IgnoredKey("ssm_cfg.norm_before_gate ssm_cfg.D_has_hdim", "as every published model", (False,)),
)

HF = Dialect(
    "hf", conventions={"decay": "log"}, drops=(common.DROP_TIED,),
    renames=(("model.backbone.", "backbone."), ("model.lm_head.", "lm_head.")),  # Mamba-Codestral
    ignored_keys=IGNORED_KEYS, caveats=(RESCALED, UNBIASED),
)
STATE_SPACES = replace(
    HF, name="state-spaces", names="hf", renames=(("backbone.embedding.", "backbone.embeddings."),),
    required_tensors=("backbone.embedding.weight", "backbone.layers.0.mixer.A_log"),
    ignored_keys=STATE_SPACES_IGNORED_KEYS, caveats=(UNBIASED,),
)
