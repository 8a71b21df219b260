"""Tiny random models that hear, one a projector: by transformers' class, or by its encoder and a published formula.

Each function saves one into a folder, and returns what it is given and what transformers makes of that, in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers.audio_encoders import OLD_WHISPER, TEXT, WHISPER, saved, spectrum

Given = dict[str, np.ndarray]
Made = tuple[Given, Callable[[], Any]]


def _wide(values: np.ndarray) -> Any:
    import torch

    return torch.tensor(values).double()


def voxtral(folder: Path) -> Made:
    import transformers as t

    config = t.VoxtralConfig(audio_config=WHISPER, text_config={"model_type": "llama", **TEXT})
    model, mel = saved(folder, t.VoxtralForConditionalGeneration(config)).double(), spectrum(16, 64)
    return {"spectrum": mel}, lambda: model.get_audio_features(_wide(mel)[None], return_dict=True).pooler_output


def musicflamingo(folder: Path) -> Made:
    import torch
    import transformers as t

    config = t.AudioFlamingo3Config(audio_config=WHISPER, text_config={"model_type": "qwen2", **TEXT})
    model, mel = saved(folder, t.AudioFlamingo3ForConditionalGeneration(config)).double(), spectrum(16, 64)
    mask = torch.ones(1, 64, dtype=torch.long)
    return {"spectrum": mel}, lambda: model.get_audio_features(_wide(mel)[None], mask, return_dict=True).pooler_output


def qwen2a(folder: Path) -> Made:
    import transformers as t

    config = t.Qwen2AudioConfig(audio_config=OLD_WHISPER, text_config={"model_type": "qwen2", **TEXT})
    model, mel = saved(folder, t.Qwen2AudioForConditionalGeneration(config)).double().model, spectrum(16, 64)
    tower, projector = model.audio_tower, model.multi_modal_projector
    return {"spectrum": mel}, lambda: projector(tower(_wide(mel)[None]).last_hidden_state)


ASR: dict[str, Any] = {
    **{name: value for name, value in OLD_WHISPER.items() if name != "max_source_positions"},
    "downsample_hidden_size": 10, "output_dim": 40, "n_window": 50, "n_window_infer": 400,
}


def qwen3a(folder: Path) -> Made:
    import torch
    import transformers as t

    config = t.Qwen3ASRConfig(audio_config=ASR, text_config=TEXT)
    model, mel = saved(folder, t.Qwen3ASRForConditionalGeneration(config)).double(), spectrum(16, 300)
    mask = torch.ones(1, 300, dtype=torch.long)
    return {"spectrum": mel}, lambda: model.get_audio_features(_wide(mel)[None], mask, return_dict=True).pooler_output


CONFORMER: dict[str, Any] = {
    "input_dim": 16, "num_layers": 3, "hidden_dim": 24, "feedforward_mult": 2, "num_heads": 3, "dim_head": 8,
    "output_dim": 11, "context_size": 10, "max_pos_emb": 14, "conv_kernel_size": 5, "conv_expansion_factor": 2,
}
QUERIES: dict[str, Any] = {
    "model_type": "blip_2_qformer", "hidden_size": 24, "encoder_hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 36, "cross_attention_frequency": 1,
}


def granite_model(folder: Path, plus: bool = False, **queries: Any) -> Any:
    import transformers as t

    sizes: dict[str, Any] = {"text_config": {"model_type": "granite", **TEXT}, "window_size": 6, "downsample_rate": 2}
    if plus:
        config = t.GraniteSpeechPlusConfig(
            encoder_config={**CONFORMER, "cat_hidden_layers": [2]}, has_lora_adapter=False,
            projector_config={**QUERIES, "encoder_hidden_size": 48}, **sizes,
        )
        return saved(folder, t.GraniteSpeechPlusForConditionalGeneration(config)).double()
    config = t.GraniteSpeechConfig(
        encoder_config=CONFORMER, projector_config={**QUERIES, **queries}, has_lora_adapter=True, **sizes
    )
    return saved(folder, t.GraniteSpeechForConditionalGeneration(config)).double()


def granite_speech(folder: Path, frames: int = 37, plus: bool = False) -> Made:
    model, mel = granite_model(folder, plus), spectrum(16, frames)
    return {"spectrum": mel}, lambda: model.get_audio_features(_wide(mel).T[None], return_dict=True).pooler_output


def granite_speech_in_whole_blocks(folder: Path) -> Made:
    return granite_speech(folder, 30)


def granite_speech_plus(folder: Path) -> Made:
    return granite_speech(folder, plus=True)


def whisper(
    folder: Path, config: dict[str, Any], tower: str, others: dict[str, tuple[int, ...]], without: tuple[str, ...] = ()
) -> tuple[Any, Any]:
    """(Its Whisper encoder, its other tensors), in float64, of a class that transformers has not.

    `without`: how the names of tensors begin that it does not have.
    """
    import torch
    import transformers as t
    from safetensors.torch import save_file

    encoder = saved(folder, t.models.whisper.modeling_whisper.WhisperEncoder(t.WhisperConfig(**OLD_WHISPER)))
    generator = torch.Generator().manual_seed(4)
    more = {name: torch.randn(shape, generator=generator) / 7 for name, shape in others.items()}
    tensors = {f"{tower}{name}": x for name, x in encoder.state_dict().items() if not name.startswith(without or "-")}
    save_file(tensors | more, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return encoder.double(), {name: tensor.double() for name, tensor in more.items()}


ULTRAVOX: dict[str, Any] = {
    "architectures": ["UltravoxModel"], "model_type": "ultravox", "stack_factor": 4, "hidden_size": 28,
    "projector_act": "swiglu", "projector_ln_mid": True, "audio_config": {"model_type": "whisper", **OLD_WHISPER},
    "text_config": {"hidden_size": 40}, "text_model_id": "meta-llama/Llama-3.2-1B-Instruct",
}


def ultravox(folder: Path) -> Made:
    """By the formula of its published code (`ultravox_model.py`)."""
    import torch

    shapes = {"ln_pre.weight": (96,), "linear_1.weight": (28, 96), "ln_mid.weight": (14,), "linear_2.weight": (40, 14)}
    named = {f"multi_modal_projector.{name}": shape for name, shape in shapes.items()}
    encoder, more = whisper(folder, ULTRAVOX, "audio_tower.", named)
    pre, first, mid, second = more.values()
    mel = spectrum(16, 64)

    def normed(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def features() -> Any:
        rows = encoder(_wide(mel)[None]).last_hidden_state.reshape(-1, 96)
        value, gate = (normed(rows, pre) @ first.T).chunk(2, -1)
        return normed(torch.nn.functional.silu(gate) * value, mid) @ second.T

    return {"spectrum": mel}, features


def glma(folder: Path) -> Made:
    import torch
    import transformers as t

    sizes = {name: value for name, value in WHISPER.items() if name != "max_source_positions"}
    config = t.GlmAsrConfig(
        audio_config={
            **sizes, "model_type": "glmasr_encoder", "max_position_embeddings": 32, "rope_parameters": ROTATION,
        },
        text_config={"model_type": "llama", **TEXT},
    )
    model, mel = saved(folder, t.GlmAsrForConditionalGeneration(config)).double(), spectrum(16, 64)
    mask = torch.ones(1, 64, dtype=torch.long)
    return {"spectrum": mel}, lambda: model.get_audio_features(_wide(mel)[None], mask, return_dict=True).pooler_output


ROTATION = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
GLM: dict[str, Any] = {
    "architectures": ["GlmasrModel"], "model_type": "Glmasr", "merge_factor": 4, "use_rope": True,
    "mlp_adapter_act": "gelu", "whisper_config": {"model_type": "whisper", **OLD_WHISPER},
    "lm_config": {"model_type": "llama", **TEXT},
}


def glma_of_its_publisher(folder: Path) -> Made:
    """By the formula of its published code (`modeling_glmasr.py`, `modeling_audio.py`): positions are not added, pairs
    side by side are rotated in the first half of each head, and two rows stand around a recording's."""
    import torch
    from torch.nn.functional import gelu, layer_norm

    shapes: dict[str, tuple[int, ...]] = {
        "layer_norm.weight": (24,), "layer_norm.bias": (24,), "adapting.0.weight": (80, 96), "adapting.0.bias": (80,),
        "adapting.2.weight": (40, 80), "adapting.2.bias": (40,), "audio_bos_eos_token.weight": (2, 40),
        "proj.weight": (40, 24), "proj.bias": (40,),
    }
    named = {f"audio_encoder.{name}": shape for name, shape in shapes.items()}
    encoder, more = whisper(folder, GLM, "audio_encoder.whisper.", named, without=("layer_norm.",))
    t = {name.removeprefix("audio_encoder."): value for name, value in more.items()}
    mel = spectrum(16, 64)

    def rotated(x: Any) -> Any:
        angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4).double()
        pairs = torch.view_as_complex(x[..., :4].unflatten(-1, (2, 2)).contiguous())
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((torch.view_as_real(pairs).flatten(-2), x[..., 4:]), -1)

    def attended(layer: Any, x: Any) -> Any:
        q, k, v = (getattr(layer, f"{part}_proj")(x).view(-1, 3, 8) for part in "qkv")
        q, k, v = (part.transpose(0, 1)[None] for part in (rotated(q), rotated(k), v))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return layer.out_proj(found[0].transpose(0, 1).flatten(1))

    def features() -> Any:
        x = gelu(encoder.conv2(gelu(encoder.conv1(_wide(mel)[None]))))[0].T
        for layer in encoder.layers:
            x = x + attended(layer.self_attn, layer.self_attn_layer_norm(x))
            x = x + layer.fc2(gelu(layer.fc1(layer.final_layer_norm(x))))
        x = layer_norm(x, (24,), t["layer_norm.weight"], t["layer_norm.bias"]).reshape(-1, 96)
        x = gelu(x @ t["adapting.0.weight"].T + t["adapting.0.bias"]) @ t["adapting.2.weight"].T + t["adapting.2.bias"]
        before, behind = t["audio_bos_eos_token.weight"][:, None]
        return torch.cat((before, x, behind))

    return {"spectrum": mel}, features


MERALION: dict[str, Any] = {
    "architectures": ["MERaLiON2ForConditionalGeneration"], "model_type": "meralion2", "speech_mlp_scale_factor": 4,
    "speech_config": {"model_type": "whisper", **OLD_WHISPER}, "text_config": {"hidden_size": 40},
}


def meralion(folder: Path) -> Made:
    """By the formula of its published code (`modeling_meralion2.py`), which norms states before it stacks them."""
    from torch.nn.functional import layer_norm, silu

    adapter = "speech_audio_adapter."
    shapes: dict[str, tuple[int, ...]] = {"ln_speech.weight": (24,), "ln_speech.bias": (24,)}
    for name, rows, columns in (("mlp_adapter.0", 30, 96), ("gate_proj", 30, 30), ("pool_proj", 30, 30)):
        shapes |= {f"{adapter}{name}.weight": (rows, columns), f"{adapter}{name}.bias": (rows,)}
    shapes |= {f"{adapter}out_proj.weight": (40, 30), f"{adapter}out_proj.bias": (40,)}
    encoder, more = whisper(folder, MERALION, "speech_encoder.", shapes)
    mel = spectrum(16, 64)

    def linear(name: str, x: Any) -> Any:
        return x @ more[f"{adapter}{name}.weight"].T + more[f"{adapter}{name}.bias"]

    def features() -> Any:
        states = encoder(_wide(mel)[None]).last_hidden_state[0]
        states = layer_norm(states, (24,), more["ln_speech.weight"], more["ln_speech.bias"])
        x = silu(linear("mlp_adapter.0", states.reshape(-1, 96)))
        return linear("out_proj", silu(linear("gate_proj", x)) * linear("pool_proj", x))

    return {"spectrum": mel}, features


NEMO = {
    "subsampling.layers.": "pre_encode.conv.", "subsampling.linear.": "pre_encode.out.",
    "relative_k_proj": "linear_pos", "q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v",
    "o_proj": "linear_out", "bias_u": "pos_bias_u", "bias_v": "pos_bias_v", "conv.norm.": "conv.batch_norm.",
}
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2AudioForConditionalGeneration"], "lfm": {"hidden_size": 40},
    "encoder": {
        "d_model": 24, "n_layers": 2, "n_heads": 3, "feat_in": 24, "subsampling_conv_channels": 10,
        "conv_kernel_size": 9, "subsampling": "dw_striding", "self_attention_model": "rel_pos", "xscaling": False,
        "ff_expansion_factor": 4,
    },
}


def lfm2a(folder: Path, width: int = 24, heads: int = 3) -> Made:
    """Parakeet's encoder, under NeMo's names, and two matrices."""
    import torch
    import transformers as t
    from safetensors.torch import save_file
    from torch.nn.functional import gelu, layer_norm, linear

    sizes = t.ParakeetEncoderConfig(
        hidden_size=width, num_hidden_layers=2, num_attention_heads=heads, intermediate_size=60, num_mel_bins=24,
        subsampling_conv_channels=10, scale_input=False, layerdrop=0.0,
    )
    encoder = saved(folder, t.ParakeetEncoder(sizes))
    generator = torch.Generator().manual_seed(4)
    shapes = {"0.weight": (width,), "0.bias": (width,), "1.weight": (50, width), "1.bias": (50,), "3.weight": (40, 50)}
    adapter = {
        name: torch.randn(shape, generator=generator) / 5 for name, shape in (shapes | {"3.bias": (40,)}).items()
    }
    tensors = {f"audio_adapter.model.{name}": tensor for name, tensor in adapter.items()}
    for name, tensor in encoder.state_dict().items():
        for theirs, nemos in NEMO.items():
            name = name.replace(theirs, nemos)
        tensors[f"conformer.{name}"] = tensor
    more = {
        "lfm.layers.0.weight": (4,), "depthformer.layers.0.weight": (4,), "audio_loss_weights": (8,),
        "audio_embedding.embedding.weight": (1600, 40), "audio_embedding.embedding_norm.weight": (40,),
        "audio_embedding.to_logits.weight": (1600, 40),
    }
    save_file(tensors | {name: torch.ones(shape) for name, shape in more.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({**LFM2, "encoder": {**LFM2["encoder"], "d_model": width, "n_heads": heads}})
    )
    mel, encoder = spectrum(24, 150), encoder.double()
    wide = {name: tensor.double() for name, tensor in adapter.items()}

    def features() -> Any:
        x = encoder(_wide(mel).T[None]).last_hidden_state[0]
        x = layer_norm(x, (width,), wide["0.weight"], wide["0.bias"])
        return linear(gelu(linear(x, wide["1.weight"], wide["1.bias"])), wide["3.weight"], wide["3.bias"])

    return {"spectrum": mel}, features


def lfm2a_as_wide_as_llama_cpp_wants(folder: Path) -> Made:
    return lfm2a(folder, 512, 8)


VISION_ENCODER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 3, "position_embedding_size": 20,
}
AUDIO_ENCODER: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "subsampling_conv_channels": [16, 6],
    "output_proj_dims": 20,
}
WORDS = {**TEXT, "head_dim": 16}
MORE = {"global_head_dim": 16, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 64}


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(7).random(size=(3, height, width)).astype(np.float32)


def _seen(model: Any, pixels: np.ndarray, size: int) -> Any:
    """The embeddings of a picture that is cut as Gemma's processor cuts it. The class computes in float32."""
    import torch

    cells = torch.tensor(pixels).unfold(1, size, size).unfold(2, size, size)
    _, rows, columns = cells.shape[:3]
    at = torch.arange(rows * columns)
    patches = cells.permute(1, 2, 3, 4, 0).reshape(1, rows * columns, -1)
    places = torch.stack([at % columns, at // columns], -1)[None]
    found = model.model.get_image_features(patches, places, return_dict=True).pooler_output
    return found[0] if isinstance(found, list | tuple) else found


def _heard(model: Any, values: np.ndarray) -> Any:
    import torch

    mask = torch.ones(1, values.shape[1], dtype=torch.bool)
    return model.model.get_audio_features(torch.tensor(values).T[None], mask, return_dict=True).pooler_output[0]


def _gemma4(folder: Path, clipped: bool) -> Any:
    import transformers as t

    config = t.Gemma4Config(
        audio_config={**AUDIO_ENCODER, "use_clipped_linears": clipped}, text_config={**WORDS, **MORE},
        vision_config={**VISION_ENCODER, "use_clipped_linears": clipped, "standardize": clipped},
    )
    model = saved(folder, t.Gemma4ForConditionalGeneration(config))
    (folder / "preprocessor_config.json").write_text('{"feature_size": 16}')
    return model


def gemma4_of_an_embedder(folder: Path) -> Made:
    """EmbeddingGemma 2: the towers of Gemma 4, one prefix less."""
    import transformers as t

    config = t.EmbeddingGemma2Config(
        audio_config={"model_type": "gemma4_audio", **AUDIO_ENCODER},
        vision_config={"model_type": "gemma4_vision", **VISION_ENCODER},
        text_config={**WORDS, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 4},
    )
    model, mel = saved(folder, t.EmbeddingGemma2Model(config)), spectrum(16, 110)
    (folder / "preprocessor_config.json").write_text('{"feature_size": 16}')
    return {"spectrum": mel}, lambda: _heard(SimpleNamespace(model=model), mel)


def gemma4a(folder: Path) -> Made:
    model, mel = _gemma4(folder, True), spectrum(16, 110)
    return {"spectrum": mel}, lambda: _heard(model, mel)


def gemma4a_unbounded(folder: Path) -> Made:
    model, mel = _gemma4(folder, False), spectrum(16, 110)
    return {"spectrum": mel}, lambda: _heard(model, mel)


def gemma4v_of_both(folder: Path) -> Made:
    model, pixels = _gemma4(folder, True), picture(24, 36)
    return {"picture": pixels}, lambda: _seen(model, pixels, 4)


def gemma4v(folder: Path) -> Made:
    import transformers as t

    config = t.Gemma4Config(audio_config=None, text_config={**WORDS, **MORE}, vision_config=VISION_ENCODER)
    model, pixels = saved(folder, t.Gemma4ForConditionalGeneration(config)), picture(24, 36)
    return {"picture": pixels}, lambda: _seen(model, pixels, 4)


def _unified(folder: Path) -> Any:
    import transformers as t

    sizes = {
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 32,
        "mm_posemb_size": 20,
        "output_proj_dims": 32,
    }
    config = t.Gemma4UnifiedConfig(text_config=WORDS, audio_config={"audio_embed_dim": 640}, vision_config=sizes)
    return saved(folder, t.Gemma4UnifiedForConditionalGeneration(config))


def gemma4uv(folder: Path) -> Made:
    model, pixels = _unified(folder), picture(24, 36)
    return {"picture": pixels}, lambda: _seen(model, pixels, 12)


def gemma4ua(folder: Path) -> Made:
    model, samples = _unified(folder), spectrum(640, 7)
    return {"spectrum": samples}, lambda: _heard(model, samples)


OMNI_EYE: dict[str, Any] = {
    "depth": 4, "hidden_size": 48, "intermediate_size": 56, "num_heads": 3, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "out_hidden_size": 40,
}
PIXELS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}


def _frames(pixels: np.ndarray, size: int = 4) -> tuple[Any, Any]:
    """(patches, grid) as Qwen's processor cuts a still picture: both frames alike, squares of two by two in turn."""
    import torch

    rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
    x = _wide(pixels).view(3, rows // 2, 2, size, columns // 2, 2, size).permute(1, 4, 2, 5, 0, 3, 6)
    patches = x.reshape(rows * columns, 3, 1, size, size).expand(-1, -1, 2, -1, -1).reshape(rows * columns, -1)
    return patches, torch.tensor([[1, rows, columns]])


def _omni(folder: Path, eye: Any, ear: Any, name: str) -> tuple[Any, Any]:
    """Two halves of a model of everything, saved as it keeps them, in float64."""
    import json as words

    from safetensors.torch import load_file, save_file

    halves = []
    tensors = {}
    for part, half in (("visual", eye), ("audio_tower", ear)):
        halves.append(saved(folder / part, half).double())
        tensors |= {f"thinker.{part}.{key}": x for key, x in load_file(folder / part / "model.safetensors").items()}
    thinker = {"vision_config": eye.config.to_dict(), "audio_config": ear.config.to_dict(), "text_config": TEXT}
    save_file(tensors | {"thinker.lm_head.weight": tensors["thinker.audio_tower.ln_post.weight"].clone()},
              folder / "model.safetensors")
    (folder / "config.json").write_text(words.dumps({"architectures": [name], "thinker_config": thinker}))
    (folder / "preprocessor_config.json").write_text(words.dumps(PIXELS))
    return halves[0], halves[1]


def _omni_2_5(folder: Path) -> tuple[Any, Any]:
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as m

    eye = m.Qwen2_5OmniVisionEncoder(
        m.Qwen2_5OmniVisionEncoderConfig(**OMNI_EYE, fullatt_block_indexes=[1, 3], window_size=112)
    )
    ear = m.Qwen2_5OmniAudioEncoder(
        m.Qwen2_5OmniAudioEncoderConfig(**{**OLD_WHISPER, "max_source_positions": 1500}, output_dim=40, n_window=100)
    )
    return _omni(folder, eye, ear, "Qwen2_5OmniModel")


def _omni_3(folder: Path) -> tuple[Any, Any]:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as m

    eye = m.Qwen3OmniMoeVisionEncoder(
        m.Qwen3OmniMoeVisionEncoderConfig(**OMNI_EYE, num_position_embeddings=36, deepstack_visual_indexes=[0, 2])
    )
    ear = m.Qwen3OmniMoeAudioEncoder(m.Qwen3OmniMoeAudioEncoderConfig(**ASR))
    return _omni(folder, eye, ear, "Qwen3OmniMoeForConditionalGeneration")


def qwen2_5o_ear(folder: Path) -> Made:
    import torch

    ear, mel = _omni_2_5(folder)[1], spectrum(16, 200)
    return {"spectrum": mel}, lambda: ear(_wide(mel), feature_lens=torch.tensor([200])).last_hidden_state


def qwen2_5o_eye(folder: Path) -> Made:
    eye, pixels = _omni_2_5(folder)[0], picture(48, 32)
    return {"picture": pixels}, lambda: _merged(eye(*_frames(pixels)))


def qwen3_omni_ear(folder: Path) -> Made:
    import torch

    ear, mel = _omni_3(folder)[1], spectrum(16, 300)
    return {"spectrum": mel}, lambda: ear(_wide(mel), feature_lens=torch.tensor([300])).last_hidden_state


def qwen3_omni_eye(folder: Path) -> Made:
    eye, pixels = _omni_3(folder)[0], picture(24, 16)
    return {"picture": pixels}, lambda: _merged(eye(*_frames(pixels)))


def _merged(found: Any) -> Any:
    """The rows of a picture, with those of earlier blocks beside them."""
    import torch

    return torch.cat([found.pooler_output, *(getattr(found, "deepstack_features", None) or ())], -1)


def dots3note_a(folder: Path) -> Made:
    import torch
    import transformers as t

    from helpers.models.dots import DOTS, DOTS_EYES

    model = saved(folder, t.Dots3NoteForConditionalGeneration(t.Dots3NoteConfig(text_config=DOTS, **DOTS_EYES)))
    settings = {**PIXELS, "min_pixels": 1764, "max_pixels": 2304}
    (folder / "preprocessor_config.json").write_text(json.dumps({"vision_config": settings}))  # as published
    mel, length, tower = spectrum(16, 75), torch.tensor([75 * 160]), model.double().model.audio_tower
    return {"spectrum": mel}, lambda: tower(_wide(mel)[None], length).pooler_output


AUDIO_ENCODERS: dict[str, Callable[[Path], Made]] = {
    one.__name__: one
    for one in (
        voxtral, musicflamingo, qwen2a, ultravox, glma, glma_of_its_publisher, meralion,
        qwen3a, granite_speech, granite_speech_in_whole_blocks,
        granite_speech_plus, lfm2a, lfm2a_as_wide_as_llama_cpp_wants,
        gemma4_of_an_embedder, gemma4a, gemma4a_unbounded, gemma4v_of_both, gemma4v, gemma4uv, gemma4ua,
        qwen2_5o_ear, qwen2_5o_eye, qwen3_omni_ear, qwen3_omni_eye, dots3note_a,
    )
}
PUBLISHED = ("ultravox", "glma_of_its_publisher", "meralion", "lfm2a", "lfm2a_as_wide_as_llama_cpp_wants")
"""Those of which transformers has the encoder alone."""
