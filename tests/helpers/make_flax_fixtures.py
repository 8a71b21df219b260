"""Write `fixtures/flax/` by transformers' Flax classes, and `fixtures/tensorflow/` by its TensorFlow classes.

    python tests/helpers/make_flax_fixtures.py flax          # transformers 4.49, flax 0.10.2, jax 0.4.35, optax 0.2.4
    python tests/helpers/make_flax_fixtures.py tensorflow    # transformers 4.49, TensorFlow 2.18, tf-keras 2.18

Each needs an environment of its own, with torch: transformers 5 has neither. Names of models behind these words write
those alone. Of each model: the weights as the class saves them; config.json; in `tensors.json` shape, type and sha256
of every tensor as the torch class loads them (`from_flax=True`, `from_tf=True`); in `logits.npy` what the Flax or
TensorFlow class computes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TOKENS = [5, 17, 42, 99, 3, 120, 77, 200, 9, 250, 64, 31]
VOCAB = 328
GPT = {"vocab_size": VOCAB, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**BASE, "num_key_value_heads": 2, "tie_word_embeddings": False}
T5 = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 4, "d_ff": 40, "num_layers": 2, "num_heads": 4}
WHISPER = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_source_positions": 20,
    "max_target_positions": 32,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), VOCAB - 1),
}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("BertModel", BASE),
    "bert-mlm": ("BertForMaskedLM", BASE),
    "roberta": ("RobertaModel", BASE),
    "distilbert": ("DistilBertModel", {"vocab_size": VOCAB, "dim": 16, "hidden_dim": 40, "n_layers": 2, "n_heads": 4}),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gptneo": (
        "GPTNeoForCausalLM",
        {**BASE, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    ),
    "opt": (
        "OPTForCausalLM",
        {**BASE, "ffn_dim": 40, "word_embed_proj_dim": 16, "do_layer_norm_before": True},
    ),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 64}),
    "gemma": ("GemmaForCausalLM", {**BASE, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "gelu"}),
    "t5": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5-tied": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "relu"}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
}
OF = {
    "flax": tuple(MODELS),
    "tensorflow": (
        "bert",
        "bert-mlm",
        "roberta",
        "distilbert",
        "gpt2",
        "gptj",
        "opt",
        "mistral",
        "t5",
        "t5-tied",
        "whisper",
    ),
}
SMALLER = {"num_decoder_layers": 1, "vocab_size": 256}
"""Of TensorFlow: of T5, whose files hold the embedding three times."""
IN_HALVES = {"llama": "bf16", "gpt2": "fp16"}
"""Of Flax: models that are saved in a smaller type."""
IN_SHARDS = {"flax": ("llama",), "tensorflow": ("mistral",)}
IN_SAFETENSORS = ("distilbert",)
"""Of TensorFlow: models whose variables are saved in safetensors, by their own names."""
IN_CHUNKS = {"gptneo": 1000, "t5": 1200}
"""Of Flax: arrays of more bytes are cut, as flax cuts those of more than 1 GiB."""


def make(name: str, **changes: Any) -> Any:
    """A model of random values, none of them zero, one or alike."""
    cls, config = MODELS[name]
    torch.manual_seed(len(name))
    model = getattr(transformers, cls)(getattr(transformers, cls).config_class(**{**config, **changes})).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "embed_positions" not in key or name != "whisper":
                value.add_(torch.randn_like(value) * 0.2)
    return model


def inputs(name: str, kind: str) -> dict[str, Any]:
    """What the model is given; encoders and decoders take the first tokens."""
    tokens = {"input_ids": np.array([TOKENS])}
    if name.startswith("t5"):
        return {**tokens, "decoder_input_ids": np.array([[0, *TOKENS[:7]]])}
    if name.endswith("-mlm"):
        return {**tokens, "output_hidden_states": True}
    if name != "whisper":
        return tokens
    sound = np.sin(np.arange(80 * 40, dtype=np.float32) * 0.37).reshape(1, 80, 40)
    return {"input_features": sound, "decoder_input_ids": np.array([TOKENS])}


def computed(outputs: Any) -> Any:
    """Logits, or the last states of an encoder."""
    states = outputs.get("hidden_states")
    return (states[-1] if states else outputs.get("logits", outputs.get("last_hidden_state")))[0]


def digests(model: Any, types: Mapping[str, str]) -> dict[str, Any]:
    """Shape, type and sha256 of every tensor that the torch class would save."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, safe_serialization=True)
        from safetensors.torch import load_file

        held = load_file(f"{folder}/model.safetensors")
    found = {}
    for key, value in held.items():
        kind = types.get("all", "float32")
        exact = value.to(getattr(torch, kind))
        assert torch.equal(exact.float(), value.float()), key
        data = exact.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[key] = [list(value.shape), kind, hashlib.sha256(data).hexdigest()]
    return found


def write(folder: Path, model: Any, numbers: Any, kind: str) -> None:
    """Write what the torch class loads, and what the other class computes."""
    (folder / "tensors.json").write_text(json.dumps(digests(model, {"all": kind}), indent=0) + "\n")
    np.save(folder / "logits.npy", np.asarray(numbers, np.float32))


def flax_model(name: str, folder: Path) -> None:
    """Write one model by its Flax class."""
    import jax
    from flax import serialization

    cls = MODELS[name][0]
    with tempfile.TemporaryDirectory() as made:
        make(name).save_pretrained(made)
        model = getattr(transformers, f"Flax{cls}").from_pretrained(made, from_pt=True)
    half = IN_HALVES.get(name)
    params = getattr(model, f"to_{half}")(model.params) if half else model.params
    whole, serialization.MAX_CHUNK_SIZE = serialization.MAX_CHUNK_SIZE, IN_CHUNKS.get(name, 1 << 30)
    model.save_pretrained(folder, params=params, max_shard_size="20KB" if name in IN_SHARDS["flax"] else "10GB")
    serialization.MAX_CHUNK_SIZE = whole
    own = {"params": jax.tree_util.tree_map(lambda value: value.astype("float32"), params)}
    given = inputs(name, "jax")
    with jax.default_matmul_precision("highest"):
        outputs = model(**given, **own)
    with tempfile.TemporaryDirectory() as one:  # the torch class reads no shards: the Flax class joins them
        if name in IN_SHARDS["flax"]:
            getattr(transformers, f"Flax{cls}").from_pretrained(folder).save_pretrained(one)
        loaded = getattr(transformers, cls).from_pretrained(
            one if name in IN_SHARDS["flax"] else folder, from_flax=True
        )
    kind = {"bf16": "bfloat16", "fp16": "float16"}.get(half or "", "float32")
    write(folder, loaded, computed(outputs), kind)


def training_state(folder: Path) -> None:
    """Write a TrainState with Adam's moments, as flax.training saves it, of a model that is here, too."""
    import optax
    from flax import serialization
    from flax.training.train_state import TrainState

    model = transformers.FlaxBertModel.from_pretrained(FIXTURES / "flax" / "bert")
    state = TrainState.create(apply_fn=model.__call__, params=model.params, tx=optax.adam(1e-3))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint_0").write_bytes(serialization.to_bytes(state))


def tensorflow_model(name: str, folder: Path) -> None:
    """Write one model by its TensorFlow class."""
    cls = MODELS[name][0]
    with tempfile.TemporaryDirectory() as made:
        make(name, **(SMALLER if name.startswith("t5") else {})).save_pretrained(made, safe_serialization=False)
        model = getattr(transformers, f"TF{cls}").from_pretrained(made, from_pt=True)
    shards = "20KB" if name in IN_SHARDS["tensorflow"] else "10GB"
    model.save_pretrained(folder, safe_serialization=name in IN_SAFETENSORS, max_shard_size=shards)
    outputs = model(**inputs(name, "tf"))
    with tempfile.TemporaryDirectory() as one:  # as of Flax
        if name in IN_SHARDS["tensorflow"]:
            getattr(transformers, f"TF{cls}").from_pretrained(folder).save_pretrained(one, safe_serialization=False)
        place = one if name in IN_SHARDS["tensorflow"] else folder
        loaded = getattr(transformers, cls).from_pretrained(place, from_tf=name not in IN_SAFETENSORS)
    write(folder, loaded, computed(outputs), "float32")


if __name__ == "__main__":
    library = sys.argv[1]
    for model in sys.argv[2:] or OF[library]:
        place = FIXTURES / library / model
        shutil.rmtree(place, ignore_errors=True)
        print(model, flush=True)
        {"flax": flax_model, "tensorflow": tensorflow_model}[library](model, place)
        (place / "generation_config.json").unlink(missing_ok=True)
    if library == "flax" and not sys.argv[2:]:
        training_state(FIXTURES / library / "train-state")
