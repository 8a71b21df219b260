"""Make fixtures/qwen3-tts/: a tiny Qwen3-TTS by its publisher's own classes, and what they compute of it.

    pip install torch 'transformers==4.57.3' 'huggingface-hub<1' 'tokenizers<0.23'   # an environment of its own
    pip download --no-deps qwen-tts==0.1.1 && unzip qwen_tts-0.1.1-*.whl -d qwen-tts
    python tests/helpers/make_qwen3_tts_fixtures.py qwen-tts

Its modules of sound import librosa and more, which what is computed here does not use: they are left out. The tokenizer
is that of `hf/ckpt/qwen3`. `table.npy`: the embedding of every text token and every code as the talker reads it;
`logits.npz`: the talker's logits of TOKENS, of the model as it is and with each change of VARIANTS.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers.modeling_utils
from safetensors.torch import save_file

FIXTURES = Path(__file__).parents[2] / "fixtures"
PLACE = FIXTURES / "qwen3-tts"
TEXTS, CODES = 400, 48
TOKENS = [5, 17, 399, 90, 401, 441, 8, 262, 447, 12, 0, 333]
"""Texts, and codes from TEXTS on."""
AXES = {"mrope_section": [2, 2, 2], "interleaved": True}
TALKER: dict[str, Any] = {
    "vocab_size": CODES,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "text_vocab_size": TEXTS,
    "text_hidden_size": 24,
    "num_code_groups": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "rope_scaling": {"rope_type": "default", "type": "default", **AXES},
    "codec_eos_token_id": 38,
    "codec_think_id": 39,
    "codec_nothink_id": 40,
    "codec_think_bos_id": 41,
    "codec_think_eos_id": 42,
    "codec_pad_id": 43,
    "codec_bos_id": 44,
    "spk_id": {"vivian": 45},
    "spk_is_dialect": {"vivian": False},
    "codec_language_id": {"chinese": 46, "english": 47},
    "pad_token_id": None,
    "code_predictor_config": {
        "vocab_size": 28,
        "hidden_size": 20,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "num_code_groups": 4,
    },
}
SPEAKER = {
    "mel_dim": 8,
    "enc_dim": 32,
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_attention_channels": 8,
    "enc_se_channels": 8,
    "enc_res2net_scale": 2,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "window": {"use_sliding_window": True, "sliding_window": 5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0, **AXES}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **AXES}},
    "base": {"rope_theta": 70.0},
    "apart": {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2], "interleaved": False}},
    "epsilon": {"rms_norm_eps": 0.1},
}
SILENT = ("librosa", "librosa.filters", "qwen_tts.inference.qwen3_tts_tokenizer")
"""Modules that stand in for those of sound, and hold nothing."""


def publishers(package: Path) -> tuple[Any, Any]:
    """Return the publisher's classes of the configuration and of the model."""
    assert transformers.__version__ == "4.57.3"
    for name in ("", ".core", ".core.models", ".inference"):
        module = ModuleType(f"qwen_tts{name}")
        module.__path__ = [str(package / module.__name__.replace(".", "/"))]
        sys.modules[module.__name__] = module
    for name in SILENT:
        module = sys.modules[name] = ModuleType(name)
        for part in ("mel", "Qwen3TTSTokenizer"):
            setattr(module, part, object)
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration

    return Qwen3TTSConfig, Qwen3TTSForConditionalGeneration


def made(config_class: Any, model_class: Any, **changes: Any) -> Any:
    """Return the model, the same weights whatever the changes are."""
    stated = json.loads(json.dumps({**TALKER, **changes}))
    config = config_class(
        talker_config=stated,
        speaker_encoder_config=SPEAKER,
        tts_model_type="base",
        tts_model_size="0b6",
        tokenizer_type="qwen3_tts_tokenizer_12hz",
    )
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim < 2:
                value.add_(torch.randn_like(value) * 0.2)
            else:
                width = 2.0 if "embedding" in name else value[0].numel() ** 0.5 / 1.3
                value.copy_(torch.randn_like(value) / width)
    return model


def table(talker: Any) -> torch.Tensor:
    """Return the embeddings of texts, then those of codes."""
    texts = talker.text_projection(talker.get_text_embeddings()(torch.arange(TEXTS)))
    return torch.cat([texts, talker.get_input_embeddings().weight])


def logits(model: Any) -> np.ndarray:
    """Return the talker's logits of TOKENS."""
    talker, mask = model.talker, torch.ones(1, len(TOKENS), dtype=torch.long)
    read = table(talker)[TOKENS][None]
    return talker(inputs_embeds=read, attention_mask=mask, use_cache=False).logits[0].numpy()


def main() -> None:
    classes = publishers(Path(sys.argv[1]))
    PLACE.mkdir(exist_ok=True)
    with torch.no_grad():
        model = made(*classes)
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        save_file(weights, PLACE / "model.safetensors", {"format": "pt"})
        model.config.architectures = ["Qwen3TTSForConditionalGeneration"]
        model.config.save_pretrained(PLACE)
        np.save(PLACE / "table.npy", table(model.talker).numpy())
        variants = {name: logits(made(*classes, **changes)) for name, changes in VARIANTS.items()}
        np.savez(PLACE / "logits.npz", plain=logits(model), **variants)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "hf/ckpt/qwen3" / name, PLACE)


if __name__ == "__main__":
    main()
