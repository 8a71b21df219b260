"""Qwen3-ASR's audio encoder: chunks of a spectrum convolved over both axes, a transformer, two matrices.

Source: transformers `modeling_qwen3_asr.py`; llama.cpp `conversion/qwen3vl.py`, `tools/mtmd/models/qwen3a.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_audio_encoder as qwen
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen3a",
    display_name="Qwen3-ASR, audio encoder",
    hf_classes=("Qwen3ASRForConditionalGeneration",),
    hparams=(clip.PROJECTOR, *qwen.hparams(qwen.WIDE, qwen.SEEN_AT_ONCE)),
    roles=qwen.LATER,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("qwen3a"), drops=qwen.DROPS, nested=qwen.MEMBERS,
            ignored_keys=qwen.IGNORED_KEYS,
            renames=(
                ("model.multi_modal_projector.linear_1.", "audio_tower.proj1."),
                ("model.multi_modal_projector.linear_2.", "audio_tower.proj2."),
                ("model.audio_tower.", "audio_tower."),
                ("thinker.audio_tower.", "audio_tower."),
            ),
            caveats=(Caveat("0 < a_window_infer and a_window_infer < 3000", qwen.WINDOWS, differs_in="llama.cpp"),),
        ),
    ),
    recipe={"computation": "projector", "audio": "qwen3a", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
