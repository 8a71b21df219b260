"""RWKV-4: attention whose weights decay with distance, a step of a recurrence for each token.

Sources: BlinkDL's RWKV-4 `src/model.py`, transformers `modeling_rwkv.py`, the GGUF specification's "RWKV",
docs/formats/ggml-era.md for rwkv.cpp's files. No runtime reads it: keys are the specification's, tensors bear the names
that llama.cpp gives the later generations. `time_mix_decay` is the trained w: a state fades by exp(-exp(w)) a token.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rwkv as rwkv
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_CONTEXTS = tuple(
    Default(length, f"the name says ctx{length}", named=rf"(?i)ctx{length}(?!\d)", dialect="blinkdl")
    for length in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
)
HPARAMS = (
    HParam("version", "architecture_version", check="version == 4"),
    rwkv.N_VOCAB,
    HParam("n_ctx", "context_length", fields={"hf": "context_length|max_position_embeddings"},
           defaults=(*_CONTEXTS, Default(1024, "the first RWKV-4 were trained on 1024 tokens; a .pth does not say"))),
    rwkv.N_EMBD, rwkv.N_LAYER, rwkv.N_FF, rwkv.EPS,
    HParam("n_state", None, fields={"hf": "attention_hidden_size"}),
    HParam("rescale_every", None, fields={"hf": "rescale_every"}, required=False),
    common.TIED,
)

ROLES = roles(
    rwkv.FRAME,
    block(
        """
        time_mix_decay.weight      : n_state        | hf,blinkdl time_decay @state
        time_mix_first.weight      : n_state        | hf,blinkdl time_first @state
        time_mix_lerp_k.weight     : n_embd         | hf time_mix_key @vector | blinkdl time_mix_k @vector
        time_mix_lerp_v.weight     : n_embd         | hf time_mix_value @vector | blinkdl time_mix_v @vector
        time_mix_lerp_r.weight     : n_embd         | hf time_mix_receptance @vector | blinkdl time_mix_r @vector
        time_mix_key.weight        : n_state n_embd | hf,blinkdl key.weight
        time_mix_value.weight      : n_state n_embd | hf,blinkdl value.weight
        time_mix_receptance.weight : n_state n_embd | hf,blinkdl receptance.weight
        time_mix_output.weight     : n_embd n_state | hf,blinkdl output.weight
        """,
        layer=rwkv.TIME_MIX, vector=rwkv.VECTOR, state=Reshape(("n_state",)),
    ),
    rwkv.channel_mix(hf=("time_mix_key", "time_mix_receptance"), blinkdl=("time_mix_k", "time_mix_r")),
)

HEADER = HeaderLayout(
    name="rwkv",
    containers=(("ggmf", 100), ("ggmf", 101)),
    header=Struct(
        "rwkv.cpp header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  rows of emb.weight
        n_embd   i32  1..MAX_WIDTH   columns of emb.weight
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..9           rwkv.cpp's own number of the matrices' type
        """,
    ),
    names=("blocks.*.att.*",),
    vocab=VocabLayout("none"),
    codes={
        100: {0: "F32", 1: "F16", 2: "Q4_0_V1", 3: "Q4_1_V1", 4: "Q4_1_O", 5: "Q4_2", 6: "Q4_3",
              7: "Q5_0_V1", 8: "Q5_1_V1", 9: "Q8_0_V1"},
        101: {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q5_0", 8: "Q5_1", 9: "Q8_0"},
    },
    axes=4,
)

# rwkv.cpp's convert_pytorch_to_ggml.py stores -exp(w), squeezes what is named time_*, and states no context.
ROLES = varied(
    ROLES, "rwkvcpp", "blinkdl", "blk.{n}.time_mix_decay.weight blocks.{n}.att.time_decay @decay",
    decay=NEG_EXP.inverse(),
)

RESCALED = Caveat(
    "rescale_every > 0",
    "rescale_every={rescale_every} is how transformers keeps float16 from overflowing: the weights are written as they "
    "were trained, and the same logits follow up to the norms' epsilon",
)

_OURS = (
    "no runtime reads RWKV-4 from GGUF; the specification names its keys and none of its tensors: they bear the names "
    "that llama.cpp gives RWKV-6's (docs/recurrent.md)"
)

SPEC = Architecture(
    name="rwkv",
    display_name="RWKV-4",
    hf_classes=("RwkvForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=(rwkv.DROP_TIED,), caveats=(RESCALED,), fixed={"version": 4}),
        replace(
            rwkv.BLINKDL,
            fixed={"version": 4, "tied": False},
            required_tensors=("blocks.0.att.time_mix_k", "blocks.0.att.time_first", "blocks.0.ffn.time_mix_r",
                "emb.weight"),
        ),
        Dialect(
            "rwkvcpp",
            fixed={"version": 4, "tied": False},
            conventions={"decay": "rate"},
            fields="ggml",
        ),
    ),
    recipe={"computation": "rwkv", "norm": "layer", "wkv": "rwkv4"},
    runtimes=(),
    headers=(HEADER,),
    caveats=(Caveat("", _OURS),),
)
