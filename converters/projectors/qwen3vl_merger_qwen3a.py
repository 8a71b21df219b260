"""Qwen3-Omni's vision encoder, which is Qwen3-VL's under other names, and its audio encoder, which is Qwen3-ASR's.

Source: transformers `modeling_qwen3_omni_moe.py`; llama.cpp `conversion/qwen3vl.py`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _deepstack as deepstack
from ggferry.converters.projectors import _qwen_audio_encoder as encoder
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.V_PROJECTOR, clip.A_PROJECTOR,
    *encoder.thinking(
        clip.HAS_VISION, clip.V_PROJECTION, deepstack.POSITIONS,
        replace(clip.V_IMAGE_SIZE, fields={}, derive=deepstack.image_size), clip.V_PATCH_SIZE, clip.V_N_EMBD,
        clip.V_N_FF, qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS, qwen.EPS, vit.ROPE,
        replace(qwen.MERGE, key="vision.spatial_merge_size"), *vit.activation(**vit.TANH),
        *deepstack.BLOCKS,
    ),
    *encoder.hparams(encoder.WIDE, encoder.SEEN_AT_ONCE),
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj", bias=True),
    vit.table("visual.pos_embed"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1"), vit.fused("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2"), vit.plain("mlp.linear_fc1", "mlp.linear_fc2"),
    ),
    roles(
        """
        norm.weight f32 : 4*v_n_embd              | hf ln_q.weight
        norm.bias       : 4*v_n_embd              | hf ln_q.bias
        fc1.weight      : 4*v_n_embd 4*v_n_embd   | hf mlp.0.weight
        fc1.bias        : 4*v_n_embd              | hf mlp.0.bias
        fc2.weight      : v_projection 4*v_n_embd | hf mlp.2.weight
        fc2.bias        : v_projection            | hf mlp.2.bias
        """,
        when="v_deepstack == 1",
        under={"gguf": "v.deepstack.{n}.", "hf": "visual.merger_list.{n}."},
    ),
    vit.norm("v.post_ln", "visual.merger.ln_q"),
    qwen.merger("visual.merger.mlp.0", "visual.merger.mlp.2"),
    encoder.LATER,
)

_WIDER = Caveat(
    "0 < deepstack_end",
    "rows of a picture hold the deepstack blocks' features behind the picture's, so that they are wider than those of "
    "a recording, and llama.cpp (b11549) takes no mmproj file whose halves differ in width",
    unsupported_by="llama.cpp",
)
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen3vl_merger+qwen3a",
    display_name="Qwen3-Omni, vision and audio encoders",
    hf_classes=("Qwen3OmniMoeForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, "v.deepstack.": "deepstack_end", **clip.AUDIO_BLOCKS},
    dialects=(
        Dialect(
            "hf",
            fixed=clip.both_fixed("qwen3vl_merger", "qwen3a"),
            drops=(*encoder.DROPS, *encoder.TALKER),
            renames=(*qwen.NAMES, ("thinker.audio_tower.", "audio_tower.")),
            renumbered=(("visual.merger_list.", "deepstack_blocks"),),
            nested=("thinker_config.vision_config", "thinker_config.audio_config"),
            ignored_keys=(
                *encoder.thought(*qwen.IGNORED_KEYS),
                *encoder.IGNORED_KEYS,
                IgnoredKey("thinker_config.vision_config.image_size", "the table of positions says it"),
            ),
            caveats=(
                _WIDER, Caveat("0 < a_window_infer and a_window_infer < 3000", encoder.WINDOWS, differs_in="llama.cpp"),
            ),
        ),
        Dialect("gguf", caveats=(_WIDER,)),
    ),
    recipe={"computation": "projector", "vision": "qwen_vl", "audio": "qwen3a", "norm": "layer", "ffn": "plain",
            "activation": "gelu_tanh", "rope": "halves"},
)
