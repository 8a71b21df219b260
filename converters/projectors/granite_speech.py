"""Granite Speech's audio encoder: a conformer whose attention sees blocks of frames, then a Q-Former over windows of
states.

Source: transformers `modeling_granite_speech.py`, `modeling_blip_2.py`; llama.cpp `conversion/granite.py`,
`tools/mtmd/models/granite-speech.cpp`. llama.cpp's converter calls the folded batch norm conv_norm_var
(gguf-py `tensor_mapping.py`), and its runtime looks for conv_norm, which is what is written here.
"""

from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _granite_audio_encoder as granite
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

_PLACES = {
    "a_n_embd": "encoder_config.hidden_dim",
    "a_n_layer": "encoder_config.num_layers",
    "a_n_head": "encoder_config.num_heads",
    "a_n_mels": "encoder_config.input_dim",
}
_SAME = "what transformers does where nothing is said"
HPARAMS = (
    clip.PROJECTOR,
    HParam("a_ff_mult", None, fields={"hf": "encoder_config.feedforward_mult"}, required=False,
           defaults=(Default(4, _SAME, dialect="hf"),)),
    *(replace(one, fields={}, derive="a_n_embd*a_ff_mult") if one.name == "a_n_ff"
      else replace(one, fields={"hf": _PLACES[one.name]}) if one.name in _PLACES else one for one in clip.AUDIO),
    clip.A_EPS,
    HParam("a_chunk", "audio.chunk_size", fields={"hf": "encoder_config.context_size"}, check="0 < a_chunk"),
    HParam("a_kernel", "audio.conv_kernel_size", fields={"hf": "encoder_config.conv_kernel_size"},
           check="a_kernel % 2 == 1"),
    HParam("a_max_pos", "audio.max_pos_emb", fields={"hf": "encoder_config.max_pos_emb"}, check="a_chunk <= a_max_pos"),
    HParam("a_head_dim", None, fields={"hf": "encoder_config.dim_head"}, required=False,
           check="a_head_dim*a_n_head == a_n_embd"),
    HParam("a_classes", None, fields={"hf": "encoder_config.output_dim"}),
    HParam("a_inner", None),
    HParam("a_proj_window", "audio.projector.window_size", fields={"hf": "window_size"}, check="0 < a_proj_window"),
    HParam("a_proj_downsample", "audio.projector.downsample_rate", fields={"hf": "downsample_rate"},
           check="0 < a_proj_downsample and a_proj_window % a_proj_downsample == 0"),
    HParam("a_proj_heads", "audio.projector.head_count", fields={"hf": "projector_config.num_attention_heads"},
           check="0 < a_proj_heads and a_n_embd % a_proj_heads == 0"),
    # llama.cpp has no key for these: it takes them for granted.
    HParam("a_proj_layers", None, fields={"hf": "projector_config.num_hidden_layers"}, absent=2,
           check="a_proj_layers == 2"),
    HParam("a_proj_embd", None, fields={"hf": "projector_config.hidden_size"}, required=False,
           check="a_proj_embd == a_n_embd"),
    HParam("a_proj_ff", None, fields={"hf": "projector_config.intermediate_size"}),
    HParam("a_proj_cross", None, fields={"hf": "projector_config.cross_attention_frequency"}, required=False,
           check="a_proj_cross == 1"),
    HParam("a_proj_act", None, clip.STRING, {"hf": "projector_config.hidden_act"}, words={"gelu": "gelu"},
           required=False),
    HParam("a_proj_eps", None, clip.F32, {"hf": "projector_config.layer_norm_eps"}, required=False,
           words={1e-12: 1e-12}),
    HParam("a_feature_layers", "audio.feature_layer", ValueType.INT32, {"hf": "encoder_config.cat_hidden_layers"},
           required=False, length="a_n_features"),
    HParam("a_n_features", None, derive=granite.features, required=False),
    HParam("a_states", None, fields={"hf": "projector_config.encoder_hidden_size"}),
    HParam("adapted", None, clip.BOOL, {"hf": "has_lora_adapter"}, required=False),
)

_ADAPTED = (
    "where it hears something, its text model wears the adapter that lies beside it (adapter_config.json); without "
    "that, what it answers is another model's"
)
_SPECTRUM = {"sample_rate": 16000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="granite_speech",
    display_name="Granite Speech, audio encoder",
    hf_classes=("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration"),
    hparams=HPARAMS,
    roles=roles(granite.ENDS, granite.BLOCKS, granite.QUERIES),
    blocks={**clip.AUDIO_BLOCKS, "a.proj_blk.": "a_proj_layers"},
    dialects=(
        Dialect(
            "hf", conventions={"qkv": "joint_kv", "batch_norm": "running"}, fixed=clip.audio_fixed("granite_speech"),
            drops=(
                *clip.TEXT,
                Drop("encoder.layers.{n}.conv.batch_norm.num_batches_tracked", "counts steps of training"),
                Drop("encoder.attention_dists", "a table of distances", follows=True),
            ),
            renames=(("model.encoder.", "encoder."), ("model.projector.", "projector.")),
            nested=("encoder_config", "projector_config"),
            ignored_keys=(
                IgnoredKey("preprocessor.melspec_kwargs", "as the runtime computes it", (_SPECTRUM,)),
                IgnoredKey("preprocessor.projector_window_size", "repeats config.json", follows="a_proj_window"),
                IgnoredKey("preprocessor.projector_downsample_rate", "repeats config.json",
                    follows="a_proj_downsample"),
                *clip.IGNORED_KEYS,
                *encoder.spectrum(sampling_rate=16000, n_fft=512, win_length=400, hop_length=160),
                IgnoredKey("encoder_config.conv_expansion_factor", "repeats shapes", follows="a_inner/a_n_embd"),
                IgnoredKey("projector_config.vocab_size projector_config.max_position_embeddings "
                         "projector_config.position_embedding_type projector_config.use_qformer_text_input",
                         "of the part of a Q-Former that reads, which this one lacks"),
            ),
            caveats=(Caveat("adapted == 1", _ADAPTED),),
        ),
    ),
    recipe={"computation": "projector", "audio": "granite_speech", "norm": "layer", "ffn": "plain",
            "activation": "silu"},
)
