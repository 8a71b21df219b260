"""Whisper models of random weights with a vocabulary of OpenAI's size, as whisper.cpp takes no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.legacy.whisper_names import LANGUAGES, STEPS, TASKS

ENGLISH, MULTILINGUAL, LARGE_V3 = 51864, 51865, 51866
CONTROL = {"nospeech": "nocaptions"}
"""OpenAI's first name of a token, which transformers' files keep."""


def ordinary_tokens(count: int) -> list[bytes]:
    """All bytes in the order of GPT-2's vocabulary, then pairs of them."""
    of_letter = letters()
    single = sorted(range(256), key=lambda byte: (ord(of_letter[byte]) >= 256, byte))
    pairs = (bytes([a, b]) for a in single for b in single)
    return [*(bytes([byte]) for byte in single), *(pair for pair, _ in zip(pairs, range(count - 256), strict=False))]


def special_tokens(rows: int) -> list[str]:
    """The tokens from <|endoftext|> on, written out from OpenAI's whisper/tokenizer.py."""
    languages = LANGUAGES[: 100 if rows == LARGE_V3 else 99]
    tasks = [CONTROL.get(task, task) if rows < LARGE_V3 else task for task in TASKS]
    names = ["endoftext", "startoftranscript", *languages, *tasks, *(f"{i * 0.02:.2f}" for i in range(STEPS))]
    return [f"<|{name}|>" for name in names]


def save_tokenizer(folder: Path, rows: int) -> list[bytes]:
    """Write tokenizer.json and its settings as transformers' Whisper has them; return the ordinary tokens' bytes."""
    tokens = ordinary_tokens(50256)
    of_letter = letters()
    spelled = ["".join(of_letter[byte] for byte in token) for token in tokens]
    vocab = {text: i for i, text in enumerate(spelled)}
    if rows > ENGLISH:
        vocab[""] = 50256
    special = special_tokens(rows)
    first = len(vocab)
    vocab[special[0]] = first
    added = [
        {
            "id": first + i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": not text[2].isdigit(),
        }
        for i, text in enumerate(special)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [f"{text[0]} {text[1]}" for text in spelled[256:]],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(made))
    end = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **end}))
    return [*tokens, *([b""] if rows > ENGLISH else [])]


def save_whisper(folder: Path, rows: int = ENGLISH, **changes: Any) -> Any:
    """Write a tiny Whisper whose weights are float16 numbers in float32, with its tokenizer; return the model."""
    import torch
    import transformers

    end = 50257 if rows > ENGLISH else 50256
    sizes: dict[str, Any] = {
        "vocab_size": rows,
        "num_mel_bins": 128 if rows == LARGE_V3 else 80,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "pad_token_id": end,
        "bos_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": end + 1,
    }
    torch.manual_seed(11)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            scale = 0.08 if tensor.dim() > 1 else 0.05
            one = 1.0 if name.endswith("norm.weight") else 0.0
            tensor.copy_((one + scale * torch.randn_like(tensor)).half().float())
    model.save_pretrained(folder)
    save_tokenizer(folder, rows)
    return model


OPENAI = {
    "layers.": "blocks.",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "self_attn.": "attn.",
    "encoder_attn.": "cross_attn.",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "embed_tokens": "token_embedding",
    "embed_positions.weight": "positional_embedding",
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
}
"""transformers' names → OpenAI's, as convert-h5-to-ggml.py of whisper.cpp changes them."""


def openai_name(name: str) -> str:
    name = name.removeprefix("model.")
    for old, new in OPENAI.items():
        name = name.replace(old, new)
    return name


def save_openai(path: Path, model: Any) -> None:
    """Write a model as OpenAI's checkpoints are: float16, with its sizes."""
    import torch

    config = model.config
    dims = {
        "n_mels": config.num_mel_bins,
        "n_vocab": config.vocab_size,
        "n_audio_ctx": config.max_source_positions,
        "n_audio_state": config.d_model,
        "n_audio_head": config.encoder_attention_heads,
        "n_audio_layer": config.encoder_layers,
        "n_text_ctx": config.max_target_positions,
        "n_text_state": config.d_model,
        "n_text_head": config.decoder_attention_heads,
        "n_text_layer": config.decoder_layers,
    }
    state = {openai_name(name): tensor.half() for name, tensor in model.state_dict().items() if "proj_out" not in name}
    torch.save({"dims": dims, "model_state_dict": state}, path)
