"""What Mamba and Mamba-2 share: the names of transformers and of state-spaces' own checkpoints, and the frame around
the state space.

Sources: llama.cpp `src/models/mamba{,2}.cpp`, `mamba-base.cpp`, `conversion/mamba.py`; transformers
`modeling_mamba{,2}.py`; state-spaces/mamba `mixer_seq_simple.py`, whose config.json names no class. GGUF stores
A = -exp(A_log).
"""

from dataclasses import replace

from ggferry.converters.arch import _common as common
from ggferry.converters.arch import _recurrent as recurrent
from ggferry.converters.layout import Pointwise, Squeeze
from ggferry.converters.spec import Default, Dialect, HParam, Remark
from ggferry.formats.gguf_values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
LAYOUTS = {"conv": Squeeze(1), "rate": Pointwise("neg_exp")}
RECIPE = {"computation": "mamba", "decay": "rate"}

N_STATE = HParam("n_state", "ssm.state_size", fields={"hf": "state_size|d_state", "state-spaces": "ssm_cfg.d_state"})
TIED = HParam(
    "tied", None, BOOL, {"hf": "tie_word_embeddings", "state-spaces": "tie_embeddings"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),
              Default(True, "state-spaces' default", dialect="state-spaces")),
)  # fmt: skip
SIZES = (
    common.N_VOCAB, recurrent.NO_LIMIT,
    HParam("n_embd", "embedding_length", fields={"hf": "hidden_size|d_model", "state-spaces": "d_model"}),
    recurrent.NO_FF, recurrent.NO_HEADS,
    HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers|n_layer", "state-spaces": "n_layer"}),
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "conv_kernel|d_conv", "state-spaces": "ssm_cfg.d_conv"}),
    HParam("n_inner", "ssm.inner_size", fields={"hf": "intermediate_size|d_inner"}),
)  # fmt: skip
EPS = HParam(
    "eps", "attention.layer_norm_rms_epsilon", F32, {"hf": "layer_norm_epsilon|rms_norm_eps"},
    defaults=(Default(1e-5, "transformers' default, and state-spaces'"),),
)  # fmt: skip
# Only what llama.cpp's graph can say.
PLAIN = (
    common.SILU,
    HParam("projection_bias", None, BOOL, {"hf": "use_bias", "state-spaces": "ssm_cfg.bias"}, words={False: False},
           required=False),
    HParam("conv_bias", None, BOOL, {"hf": "use_conv_bias", "state-spaces": "ssm_cfg.conv_bias"}, words={True: True},
           required=False),
    HParam("rms_norm", None, BOOL, {"state-spaces": "rms_norm"}, words={True: True}, required=False),
)  # fmt: skip

FRAME = """
token_embd.weight             : n_vocab n_embd | hf backbone.embeddings.weight
output_norm.weight f32        : n_embd         | hf backbone.norm_f.weight
output.weight when=tied==0    : n_vocab n_embd | hf lm_head.weight
blk.{n}.attn_norm.weight f32  : n_embd         | hf backbone.layers.{n}.norm.weight
blk.{n}.ssm_out.weight        : n_embd n_inner | hf backbone.layers.{n}.mixer.out_proj.weight
"""

EXPANSION = Remark(
    "n_inner != 2 * n_embd",
    "the state space is {n_inner} wide for a model of {n_embd}; llama.cpp loads twice that only",
)
HF = Dialect(
    "hf", conventions={"decay": "log"}, drops=(common.DROP_TIED,),
    renames=(("model.backbone.", "backbone."), ("model.lm_head.", "lm_head.")),  # Mamba-Codestral
)  # fmt: skip
STATE_SPACES = replace(
    HF, name="state-spaces", names="hf", renames=(("backbone.embedding.", "backbone.embeddings."),),
    marks=("backbone.embedding.weight", "backbone.layers.0.mixer.A_log"),
)  # fmt: skip
