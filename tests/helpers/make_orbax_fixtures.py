"""Write `fixtures/orbax/`: Gemma as google-deepmind's package `gemma` computes it, saved by orbax.

    python tests/helpers/make_orbax_fixtures.py    # gemma 3.3.0, flax, jax 0.7, orbax-checkpoint 0.12.8

That needs an environment of its own; kauldron, which the package's modules use for a marker and for names of shapes, is
replaced by stand-ins. Of each model: the checkpoint; in `original/config.json` what transformers calls the same model;
in `tensors.json` shape, type and sha256 of every array as orbax restores it; in `logits.npy` what the package's
embedder and blocks compute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "orbax"
TOKENS = [5, 17, 42, 9, 3, 12, 71, 20, 9, 55, 64, 31]
VOCAB, WIDTH, INNER, HEAD = 96, 8, 12, 6
MODELS: dict[str, dict[str, Any]] = {
    "gemma": {"layers": 2, "heads": 4, "keys": 1, "store": "flat"},
    "gemma-joint": {"layers": 1, "heads": 2, "keys": 2, "store": "folders"},
    "gemma2": {
        "layers": 2,
        "heads": 4,
        "keys": 2,
        "post": True,
        "caps": (50.0, 30.0),
        "window": 4,
        "every": 2,
        "by_width": True,
        "transposed": True,
    },
    "gemma3": {
        "layers": 6,
        "heads": 4,
        "keys": 1,
        "post": True,
        "normed": True,
        "window": 4,
        "every": 6,
        "factor": 8.0,
        "transposed": True,
        "store": "bfloat16",
    },
}
"""`store`: 'flat', names as the first release has them (`transformer/layer_0/attn/q_einsum`); 'folders', without OCDBT;
'bfloat16', in that type, as releases are, beside a training's state; else nested names in float32."""


def modules() -> Any:
    """The package's modules, with stand-ins for what they take of kauldron."""

    class Identity(nn.Module):
        def __call__(self, value: Any) -> Any:
            return value

    class Anything:
        def __class_getitem__(cls, _: Any) -> Any:
            return cls

        def __or__(self, _: Any) -> Any:
            return Any

    whole, kd, inner, typing = (ModuleType(f"kauldron{name}") for name in ("", ".kd", ".kd.nn", ".typing"))
    inner.Identity, kd.nn, whole.kd, whole.typing = Identity, inner, kd, typing
    typing.__getattr__ = lambda name: (lambda function: function) if name == "typechecked" else Anything
    sys.modules.update({"kauldron": whole, "kauldron.kd": kd, "kauldron.typing": typing})
    from gemma.gm.nn import _layers, _modules

    return _layers, _modules


def model(spec: dict[str, Any]) -> nn.Module:
    """The package's `Transformer`, of its embedder, blocks and norm, for text alone."""
    layers, parts = modules()
    every, window = spec.get("every", 0), spec.get("window")
    scores, final = spec.get("caps", (None, None))

    def is_local(number: int) -> bool:
        return bool(every) and (number + 1) % every != 0

    class Transformer(nn.Module):
        def setup(self) -> None:
            self.embedder = parts.Embedder(vocab_size=VOCAB, embed_dim=WIDTH)
            self.blocks = [
                parts.Block(
                    name=f"layer_{number}",
                    num_heads=spec["heads"],
                    num_kv_heads=spec["keys"],
                    embed_dim=WIDTH,
                    head_dim=HEAD,
                    hidden_dim=INNER,
                    sliding_window_size=window,
                    use_post_attn_norm=spec.get("post", False),
                    use_post_ffw_norm=spec.get("post", False),
                    attn_logits_soft_cap=scores,
                    attn_type=parts.AttentionType.LOCAL_SLIDING if is_local(number) else parts.AttentionType.GLOBAL,
                    query_pre_attn_scalar=(WIDTH // spec["heads"] if spec.get("by_width") else HEAD) ** -0.5,
                    transpose_gating_einsum=spec.get("transposed", False),
                    use_qk_norm=spec.get("normed", False),
                    rope_base_frequency=1_000_000 if spec.get("normed") and not is_local(number) else 10_000,
                    rope_scale_factor=1.0 if is_local(number) else spec.get("factor", 1.0),
                )
                for number in range(spec["layers"])
            ]
            self.final_norm = layers.RMSNorm()

        def __call__(self, tokens: Any) -> Any:
            states, count = self.embedder.encode(tokens), tokens.shape[1]
            places, mask = jnp.arange(count)[None], jnp.tril(jnp.ones((1, count, count), bool))
            for block in self.blocks:
                _, states = block(states, places, None, mask)
            logits = self.embedder.decode(self.final_norm(states))
            return logits if final is None else jnp.tanh(logits / final) * final

    return Transformer()


def configuration(spec: dict[str, Any]) -> dict[str, Any]:
    """What transformers calls the same model."""
    made = {
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": spec["layers"],
        "num_attention_heads": spec["heads"],
        "num_key_value_heads": spec["keys"],
        "head_dim": HEAD,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 10000.0,
    }
    if not spec.get("post"):
        return made
    made |= {
        "sliding_window": spec["window"],
        "query_pre_attn_scalar": WIDTH // spec["heads"] if spec.get("by_width") else HEAD,
    }
    if not spec.get("normed"):
        caps = {"attn_logit_softcapping": spec["caps"][0], "final_logit_softcapping": spec["caps"][1]}
        return {**made, **caps, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
    return {
        **made,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window_pattern": spec["every"],
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": spec["factor"]},
    }


def save(spec: dict[str, Any], params: Any, folder: Path) -> None:
    """Write the checkpoint, in the form that `store` names."""
    form = spec.get("store")
    tree = {"transformer": params}
    if form == "flat":  # by the package's own names of its first release
        import gemma

        place = Path(gemma.__file__).parent / "gm" / "ckpts" / "_compat.py"
        spec_of = importlib.util.spec_from_file_location("compat", place)
        _compat = importlib.util.module_from_spec(spec_of)
        spec_of.loader.exec_module(_compat)
        tree = {f"transformer/{key}": value for key, value in _compat.flatten_and_remap_params(params).items()}
    if form == "bfloat16":
        tree = {"params": params, "opt_state": {"mu": jax.tree.map(jnp.zeros_like, params["final_norm"])}, "step": 7}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=form != "folders")
    ocp.Checkpointer(handler).save(folder, tree)


def restored(folder: Path) -> dict[str, Any]:
    """Shape, type and sha256 of every array as orbax restores it, by its names joined."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(ocp.PyTreeCheckpointer().restore(folder))
    arrays = {".".join(str(key.key) for key in path): np.asarray(leaf) for path, leaf in leaves}
    return {
        name: [list(array.shape), array.dtype.name, hashlib.sha256(array.tobytes()).hexdigest()]
        for name, array in arrays.items()
    }


def write(name: str) -> None:
    """Write one folder."""
    spec, folder = MODELS[name], FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    net, tokens = model(spec), jnp.array([TOKENS])
    params = net.init(jax.random.key(len(name)), tokens)["params"]
    leaves, shape = jax.tree.flatten(params)
    rng = np.random.default_rng(len(name))
    leaves = [leaf + 0.2 * jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32) for leaf in leaves]
    if spec.get("store") == "bfloat16":
        leaves = [leaf.astype(jnp.bfloat16) for leaf in leaves]
    params = jax.tree.unflatten(shape, leaves)
    save(spec, params, folder)
    tensors = restored(folder)
    for rest in ("array_metadatas", "commit_success.txt"):
        shutil.rmtree(folder / rest) if (folder / rest).is_dir() else (folder / rest).unlink(missing_ok=True)
    with jax.default_matmul_precision("highest"):
        logits = net.apply({"params": jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)}, tokens)
    (folder / "tensors.json").write_text(json.dumps(tensors, indent=0) + "\n")
    np.save(folder / "logits.npy", np.asarray(logits[0], np.float32))
    (folder / "original").mkdir()
    (folder / "original" / "config.json").write_text(json.dumps(configuration(spec), indent=1) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        print(each, flush=True)
        write(each)
