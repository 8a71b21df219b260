"""Make fixtures/mlx-npz: models in the form that mlx-examples wrote until January 2024, and what it computes of them.

Run once, in an environment that has ggferry's test dependencies, mlx==0.32.4 and mlx-cpu==0.32.4, with a checkout of
github.com/ml-explore/mlx-examples at 7ddca42f: `python tests/helpers/make_mlx_npz_fixtures.py CHECKOUT`. Its own
`llms/llama/convert.py` writes the files, and its `llama.py` computes the logits, of the values as float32.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

FIXTURES = Path(__file__).parents[2] / "fixtures"
SOURCE, OUT = FIXTURES / "hf/ckpt/llama", FIXTURES / "mlx-npz"
TOKENS = (1, 17, 4, 90, 33, 2, 61, 5, 44, 100, 12, 77, 3, 3, 58, 29)
FOUR_BITS = ("-q", "--q-bits", "4", "--q-group-size", "32")
NAMES = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
    "post_attention_layernorm": "ffn_norm", "input_layernorm": "attention_norm", "model.layers": "layers",
}  # fmt: skip


def as_meta(folder: Path) -> None:
    """Write the fixture's model as Meta's: its names, and pairs of rows in queries and keys."""
    config, state = json.loads((SOURCE / "config.json").read_text()), {}
    for name, value in load_file(SOURCE / "model.safetensors").items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads:
            value = value.reshape(heads, 2, -1, value.shape[1]).transpose(1, 2).reshape(value.shape)
        for theirs, metas in NAMES.items():
            name = name.replace(theirs, metas)
        state[name] = value.contiguous().half()
    torch.save(state, folder / "consolidated.00.pth")
    params = {
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": -1,
        "multiple_of": 32,
    }
    assert config["hidden_size"] == params["dim"]
    (folder / "params.json").write_text(json.dumps(params))
    shutil.copy(SOURCE / "tokenizer.model", folder)


def converted(checkout: Path, source: Path, out: Path, *options: str) -> None:
    """Run mlx-examples' converter."""
    program = checkout / "llms/llama/convert.py"
    command = [sys.executable, program, "--torch-path", source, "--mlx-path", out, *options]
    subprocess.run(list(map(str, command)), check=True, cwd=checkout / "llms/llama")


def answers_of(checkout: Path, folder: Path) -> tuple[dict[str, str], np.ndarray]:
    """Return the sha256 of the values of every tensor as float32, and the logits."""
    import mlx.core as mx  # type: ignore[import-not-found]
    from mlx import nn  # type: ignore[import-not-found]
    from mlx.utils import tree_flatten, tree_unflatten  # type: ignore[import-not-found]

    sys.path.insert(0, str(checkout / "llms/llama"))
    from llama import load_model  # type: ignore[import-not-found]

    model, _ = load_model(str(folder))
    weights = tree_flatten(model.parameters())
    model.update(tree_unflatten([(k, v.astype(mx.float32) if v.dtype != mx.uint32 else v) for k, v in weights]))
    plain, given = dict(tree_flatten(model.parameters())), json.loads((folder / "config.json").read_text())
    sums: dict[str, str] = {}
    for name, value in plain.items():
        base = name.removesuffix(".weight")
        if value.dtype == mx.uint32:
            setting = given["quantization"]
            value = mx.dequantize(value, plain[f"{base}.scales"], plain[f"{base}.biases"], **setting)
        if name.endswith(".weight"):
            sums[name] = hashlib.sha256((np.array(value).astype("<f4") + 0.0).tobytes()).hexdigest()
    x = mx.array([TOKENS])
    x = model.tok_embeddings(x)
    mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1])
    for layer in model.layers:
        x, _ = layer(x, mask)
    return sums, np.array(model.output(model.norm(x))[0])


def main() -> None:
    """Write the fixtures."""
    import mlx.core as mx

    checkout, answers, logits = Path(sys.argv[1]), dict[str, Any](), dict[str, np.ndarray]()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        as_meta(Path(place))
        converted(checkout, Path(place), OUT / "meta-q4", *FOUR_BITS)
    converted(
        checkout, SOURCE, OUT / "tiny-q4", "--model-name", "tiny_llama", "-q", "--q-bits", "4", "--q-group-size", "32"
    )
    whole = mx.load(str(OUT / "tiny-q4/weights.npz"))
    halves = [dict(list(whole.items())[::2]), dict(list(whole.items())[1::2])]
    for number, half in enumerate(halves):
        mx.savez(str(OUT / f"tiny-q4/weights.{number:02d}.npz"), **half)
    (OUT / "tiny-q4/weights.npz").unlink()
    for name in ("meta-q4", "tiny-q4"):
        answers[name], logits[name] = answers_of(checkout, OUT / name)
    (OUT / "answers.json").write_text(json.dumps({"mlx": mx.__version__, "values": answers}, indent=1) + "\n")
    np.savez_compressed(OUT / "logits.npz", **logits)


if __name__ == "__main__":
    main()
