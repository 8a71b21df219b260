"""Pocket TTS, the backbone: a decoder with layer norms and a plain network, whose states latents of sound are made of.

GGUF's table of embeddings ends with rows of no text: padding, what stands before a voice, and the latent with which
sound begins, as the matrix before the blocks makes it. No configuration stands beside the weights; what their shapes do
not say is the same in all that are published. Sources: pocket-tts 4.0.1 of PyPI (`models/flow_lm.py`,
`modules/{transformer,attention,rope}.py`, `config/*.yaml`); llama.cpp b11549 `src/models/pockettts.cpp`,
`conversion/pockettts.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam
from ggferry.converters.schema.layouts.parts import Share, Split
from ggferry.converters.schema.layouts.projected import WithLatent
from ggferry.converters.schema.roles import block, roles, varied

_ALL = "in all 27 configurations of pocket-tts 4.0.1; its YAML, which says it, is no part of a checkpoint and not read"
HPARAMS = (
    replace(common.N_VOCAB, fields={}),
    replace(common.N_CTX, fields={}, defaults=(
        Default(4096, "what convert_hf_to_gguf.py writes; the publisher's code has no limit"),)),
    *(replace(size, fields={}) for size in (common.N_EMBD, common.N_LAYER, common.N_FF)),
    HParam("head_dim", common.HEAD_DIM.key, derive="n_embd / n_head", defaults=(Default(64, _ALL),)),
    replace(common.N_HEAD, fields={}, check="n_head * head_dim == n_embd"),
    replace(common.N_HEAD_KV, fields={}),
    replace(common.LAYER_EPS, fields={}, defaults=()),
    replace(rope.BASE, fields={}, defaults=(Default(10000.0, _ALL),)),
    replace(rope.N_ROT, derive="head_dim"),
)

_QUERIES, _IN = "n_head*head_dim", "self_attn.in_proj"
ROLES = roles(
    "token_embd.weight : n_vocab n_embd | hf flow_lm.conditioner.embed.weight flow_lm.bos_before_voice "
    "flow_lm.input_linear.weight flow_lm.bos_emb @latent",
    tensors.norm("output_norm", "flow_lm.out_norm", bias=True),
    block(
        tensors.norm("attn_norm", "norm1", bias=True),
        tensors.linear("attn_q", f"{_QUERIES} n_embd", _IN, Split(0, _QUERIES)),
        tensors.linear("attn_k", "n_head_kv*head_dim n_embd", _IN, Share(_QUERIES, 0, 2)),
        tensors.linear("attn_v", "n_head_kv*head_dim n_embd", _IN, Share(_QUERIES, 1, 2)),
        tensors.linear("attn_output", f"n_embd {_QUERIES}", "self_attn.out_proj"),
        tensors.norm("ffn_norm", "norm2", bias=True),
        tensors.plain("", ("linear1", "linear2")),
        layer="flow_lm.transformer.layers.{n}.",
    ),
    latent=WithLatent(),
)
# English of January 2026 has no row before a voice.
ROLES = varied(
    ROLES, "unvoiced", "hf",
    "token_embd.weight flow_lm.conditioner.embed.weight flow_lm.input_linear.weight flow_lm.bos_emb @latent",
    latent=WithLatent(),
)

_LATENTS = "of what makes latents of states: this file holds the backbone"
_HF = Dialect(
    "hf", fields="pockettts", fixed={"eps": 1e-5}, conventions={"qkv": "fused"},
    required_tensors=("flow_lm.bos_emb", "flow_lm.transformer.layers.0.self_attn.in_proj.weight",
        "flow_lm.bos_before_voice"),
    drops=(
        Drop("mimi.*", "the codec of sound: this file holds the backbone"),
        Drop("flow_lm.speaker_proj_weight", "of the encoder of voices: this file holds the backbone"),
        Drop("flow_lm.z_proj.weight", "of what makes latents of states, and llama.cpp has no place for it: it makes no "
             "sound of this model"),
        *(Drop(f"flow_lm.{name}", _LATENTS) for name in ("flow_net.*", "out_eos.*", "emb_mean", "emb_std")),
    ),
    caveats=(
        Caveat("n_embd > 0", "the last row of token_embd.weight is computed: the latent with which sound begins, "
               "through the matrix before the blocks"),
        Caveat("n_embd > 0", "this file is the backbone: llama.cpp makes sound of its states with an mmproj file, of "
               "the encoder of voices, the flow net and the codec, which is not written"),
    ),
)

SPEC = Architecture(
    name="pockettts", runtimes=("llama.cpp",),
    display_name="Pocket TTS",
    hf_classes=("PocketTTSModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(_HF, replace(_HF, name="unvoiced", required_tensors=_HF.required_tensors[:-1])),
    recipe={"computation": "ggferry.converters.forward.sound.pockettts", "norm": "layer", "rope": "pairs",
            "ffn": "plain", "activation": "gelu_tanh"},
)
