"""WavTokenizer's decoder: codes of sound to the logarithms of magnitudes, and the phases, of its spectrum.

A convolution, a network over positions (two residual blocks, attention over all, two residual blocks, a norm), ConvNeXt
blocks between two norms, and a matrix. Sources: jishengpeng/WavTokenizer `decoder/models.py` (`VocosBackbone`),
llama.cpp `src/models/wavtokenizer-dec.cpp`, `conversion/wavtokenizer.py`. Names and columns of biases are those of
llama.cpp's `convert_pt_to_hf.py`, which keeps the first row of each adaptive norm, as OuteTTS uses it.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _wavtokenizer as wav
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.roles import block, roles

_RESIDUAL, _ATTENDING, _LAST = "n == 0 or n == 1 or n == 3 or n == 4", "n == 2", "n == 5"
_TAPS = f"{wav.WIDTH} {wav.WIDTH} 3"
_ROLES = roles(
    linear("token_embd", "n_vocab n_embd", "backbone.embedding"),
    wav.biased("conv1d", "backbone.embed", f"{wav.WIDTH} n_embd 7"),
    wav.positions(
        wav.biased("norm1", "norm1"), wav.biased("conv1", "conv1", _TAPS),
        wav.biased("norm2", "norm2"), wav.biased("conv2", "conv2", _TAPS),
        when=_RESIDUAL,
    ),
    wav.positions(wav.biased("attn_norm", "norm"), when=f"{_ATTENDING} or {_LAST}"),
    wav.positions(
        *(wav.biased(f"attn_{name}", source, f"{wav.WIDTH} {wav.WIDTH} 1")
          for name, source in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "proj_out"))),
        when=_ATTENDING,
    ),
    norm("token_embd_norm", "backbone.norm", width=wav.WIDTH, bias=True),
    block(
        wav.biased("dw", "dwconv", f"{wav.WIDTH} 1 7"),
        norm("norm", "norm", width=wav.WIDTH, bias=True),
        linear("pw1", f"n_ff {wav.WIDTH}", "pwconv1", bias=True),
        linear("pw2", f"{wav.WIDTH} n_ff", "pwconv2", bias=True),
        f"gamma.weight f32 : {wav.WIDTH} | hf gamma.weight",
        name="convnext.{n}.", layer="backbone.convnext.{n}.",
    ),
    norm("output_norm", "backbone.final_layer_norm", width=wav.WIDTH, bias=True),
    linear("output", f"n_embd_out {wav.WIDTH}", "head.out", bias=True),
)


SPEC = Architecture(
    name="wavtokenizer-dec", runtimes=("llama.cpp",),
    display_name="WavTokenizer",
    hf_classes=("WavTokenizerDec",),
    hparams=(
        common.N_VOCAB,
        common.N_CTX,
        wav.size("n_embd_out", "embedding_length", "hidden_size"),
        wav.size("n_embd", "features_length", "n_embd_features"),
        wav.size("n_layer", "block_count", "n_layer", "n_posnet <= n_layer and n_convnext <= n_layer"),
        wav.size("n_ff", "feed_forward_length", "n_ff"),
        wav.size("n_head", "attention.head_count", "n_head"),
        replace(common.LAYER_EPS, fields={"hf": "layer_norm_epsilon"}, defaults=()),
        HParam("group_eps", "attention.group_norm_epsilon", common.F32, {"hf": "group_norm_epsilon"}),
        wav.size("n_groups", "attention.group_norm_groups", "group_norm_groups", "n_width % n_groups == 0"),
        wav.size(wav.WIDTH, "posnet.embedding_length", "posnet.n_embd"),
        wav.size("n_posnet", "posnet.block_count", "posnet.n_layer", "n_posnet == 6"),
        wav.size("n_next", "convnext.embedding_length", "convnext.n_embd", "n_next == n_width"),
        wav.size("n_convnext", "convnext.block_count", "convnext.n_layer"),
        encoder.BOTH_SIDES,
        common.NO_VOCABULARY,
    ),
    roles=_ROLES,
    dialects=(
        Dialect(
            "hf",
            fixed={"causal": False, "no_vocabulary": True},
            drops=wav.DROPS,
            caveats=(
                Caveat("n_embd > 0", "it gives logarithms of magnitudes, and phases, of a spectrum: llama.cpp computes "
                       "these, and what makes a wave of them is another program's"),
            ),
        ),
    ),
    recipe={"computation": "ggferry.converters.forward.sound.wavtokenizer", "norm": "layer", "activation": "gelu"},
    blocks={"posnet.": "n_posnet", "convnext.": "n_convnext"},
)
