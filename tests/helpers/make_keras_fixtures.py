"""Write `fixtures/keras/`: presets of KerasHub, as `save_to_preset` of its classes writes them.

    KERAS_BACKEND=tensorflow python tests/helpers/make_keras_fixtures.py    # keras-hub 0.32.0, keras 3.15.1,
                                                                            # tensorflow-cpu 2.20.0

That needs an environment of its own, with tensorflow-text 2.20.1 and sentencepiece. Names of models behind it write
those alone. Of each model: the preset; in `logits.npy` what its own classes compute of it, read again from the folder;
in `tensors.json`, where KerasHub has an export to transformers for the class, shape and sha256 of every tensor that
this export makes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import keras_hub
import numpy as np
import sentencepiece

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "keras"
TOKENS = [5, 17, 42, 9, 3, 12, 71, 20, 9, 55, 64, 31]
VOCAB = 96
BASE = {"vocabulary_size": VOCAB, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24}
GROUPED = {**BASE, "num_query_heads": 4, "num_key_value_heads": 2}
WIDE = {**GROUPED, "hidden_dim": 8, "intermediate_dim": 12, "head_dim": 6}
POST = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
SCALED = {
    "rope_max_wavelength": 500000,
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", WIDE),
    "gemma2": (
        "Gemma",
        {
            **WIDE,
            **POST,
            "final_logit_soft_cap": 30.0,
            "attention_logit_soft_cap": 50.0,
            "use_sliding_window_attention": True,
            "sliding_window_size": 4,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            **WIDE,
            **POST,
            "num_layers": 6,
            "image_size": None,
            "use_sliding_window_attention": True,
            "sliding_window_size": 4,
            "global_rope_scaling_factor": 8.0,
        },
    ),
    "llama-tied": ("Llama", {**GROUPED, "num_layers": 1, "tie_word_embeddings": True}),
    "llama3": ("Llama3", {**GROUPED, **SCALED, "num_layers": 1}),
    "mistral": ("Mistral", {**GROUPED, "num_layers": 1, "sliding_window": 4, "dtype": "bfloat16"}),
    "qwen": ("Qwen", {**GROUPED, "num_layers": 1}),
    "qwen3": ("Qwen3", {**WIDE, "num_layers": 1, "layer_norm_epsilon": 1e-5, "sliding_window_size": None}),
    "gpt2": ("GPT2", {**BASE, "num_layers": 1, "num_heads": 4, "intermediate_dim": 64, "max_sequence_length": 32}),
}
IN_SHARDS = {"gemma3": 12_000}
"""Models in several files, each of so many bytes at most."""
NOT_EXPORTED = ("gemma", "gemma2")
"""Models that KerasHub exports wrongly: of their keys and values the first head alone, of Gemma 2 two of four norms."""


def pieces() -> bytes:
    """A vocabulary of SentencePiece with the tokens that Gemma's class asks for."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abcd efgh ijkl mnop qrst uvwx yz the quick brown fox jumps over lazy dogs"] * 40),
        model_writer=made,
        vocab_size=VOCAB - 2,
        model_type="bpe",
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        bos_piece="<bos>",
        eos_piece="<eos>",
        unk_piece="<unk>",
        normalization_rule_name="identity",
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
    )
    return made.getvalue()


def made(name: str) -> Any:
    """A backbone of random values, none of them zero, one or alike."""
    cls, config = MODELS[name]
    keras.utils.set_random_seed(len(name))
    backbone = getattr(keras_hub.models, f"{cls}Backbone")(**config)
    rng = np.random.default_rng(len(name))
    for weight in backbone.weights:
        weight.assign(np.asarray(weight) + 0.2 * rng.standard_normal(weight.shape))
    return backbone


def save(name: str, folder: Path) -> None:
    """Write the preset: of Gemma with its tokenizer, which makes it that of a task."""
    backbone = made(name)
    shards = {"max_shard_size": IN_SHARDS[name] / (1 << 30)} if name in IN_SHARDS else {}
    if name != "gemma":
        backbone.save_to_preset(folder, **shards)
        return
    tokenizer = keras_hub.models.GemmaTokenizer(proto=pieces())
    preprocessor = keras_hub.models.GemmaCausalLMPreprocessor(tokenizer=tokenizer, sequence_length=16)
    keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=preprocessor).save_to_preset(folder)


def logits(backbone: Any) -> Any:
    """What the model computes, by its causal class's way from hidden states to logits."""
    ids = np.array([TOKENS])
    hidden = backbone.predict_on_batch({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    return np.asarray(backbone.get_layer("token_embedding")(hidden, reverse=True), np.float32)[0]


def exported(cls: str, backbone: Any) -> dict[str, Any] | None:
    """Shape and sha256 of what KerasHub exports to transformers; None where it cannot."""
    from keras_hub.src.utils.transformers.export import hf_exporter

    found = getattr(hf_exporter, f"get_{cls.lower()}_weights_map", None)
    if found is None:
        return None
    arrays = {key: np.ascontiguousarray(value) for key, value in found(backbone, include_lm_head=True).items()}
    digests = {
        key: [list(value.shape), hashlib.sha256(value.astype("<f4").tobytes()).hexdigest()]
        for key, value in arrays.items()
    }
    embeddings = [digests.get(f"{one}.weight") for one in ("model.embed_tokens", "transformer.wte")]
    tied = digests.get("lm_head.weight") in embeddings
    return {key: value for key, value in digests.items() if not tied or key != "lm_head.weight"}


def write(name: str) -> None:
    """Write one folder."""
    folder, cls = FOLDER / name, MODELS[name][0]
    shutil.rmtree(folder, ignore_errors=True)
    save(name, folder)
    tied = {} if name != "llama-tied" else {"tie_word_embeddings": True}  # which its config.json does not keep
    wide = {"dtype": "float32"}  # of one that is kept in bfloat16: what its values give without rounding on the way
    backbone = getattr(keras_hub.models, f"{cls}Backbone").from_preset(str(folder), **tied, **wide)
    np.save(folder / "logits.npy", logits(backbone))
    if name not in NOT_EXPORTED and (tensors := exported(cls, backbone)) is not None:
        (folder / "tensors.json").write_text(json.dumps(tensors, indent=0) + "\n")


if __name__ == "__main__":
    for model in sys.argv[1:] or MODELS:
        print(model, flush=True)
        write(model)
