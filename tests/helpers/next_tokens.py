"""Tiny models with blocks that predict further tokens, which transformers does not make: the decoder's own, scaled.

No two of a model's blocks are alike; a shift in place of the factor would drown random weights, so that hardly anything
that a block reads would be seen in what it gives.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from helpers import own_next_tokens as special
from helpers.tiny import TOKENS
from helpers.tiny_models import make

LAST: dict[str, dict[str, Any]] = {
    "glm4moe": {},
    "deepseek v3": {"rms_norm_eps": 1e-6},
    "hy_v3": {},
    "deepseek v3.2": {"rms_norm_eps": 1e-6, "index_head_dim": 64},
    "ling 3": {},
    "step35": {
        "mtp_layer_types": ["full_attention"] * 2,
        "mtp_mlp_layer_types": ["dense"] * 2,
        "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.5],  # the block that is copied is bounded by nothing
    },
    "cohere2moe": {},
    "cohere2moe sigmoid": {"prefix_dense_sliding_window_pattern": 1},
    "glm 5": {"rms_norm_eps": 1e-6, "index_head_dim": 64, "indexer_types": ["full", "shared", "full", "full"]},
}
"""Families that keep such blocks as layers behind the last."""
_STEP = "transformer.shared_head"
FINAL = {"ling 3": "final_layernorm", "step35": f"{_STEP}.norm"}
"""What the last norm of such a block is called, where not `shared_head.norm`."""
OWN: dict[str, tuple[str, ...]] = {"ling 3": (), "step35": (f"{_STEP}.output",)}
"""Its own matrices of a row a token, where not `embed_tokens` and `shared_head.head`."""
LIKE = {"step35": 0}
"""Families whose blocks are like another one than the last: Step's is dense, and looks at everything."""
APART = ("qwen3next", "qwen3next irregular", "qwen35", "qwen35moe", "qwen35 that sees")
"""Families that keep theirs under `mtp.`, which attends to everything whatever the last block does."""
MODELS: dict[str, dict[str, Any]] = {**LAST, **{name: {} for name in (*APART, *special.OWN_BLOCKS)}}
ONLY_ALONE = tuple(special.ONLY_ALONE)
SPOILED = {"qwen3next": 1e-4}
"""Families one of whose rows float32 spoils in the decoder: transformers' is 2e-4 off a pass in float64, ours 3e-5."""
EXTRAS = {name: family.extras for name, family in special.OWN_BLOCKS.items()}


def most(name: str) -> int:
    """Return how many such blocks a model of this name may have here."""
    family = special.FAMILIES.get(name)
    return family.count if family else 2 if name in LAST else 1


def predicting(name: str, folder: Path, count: int = 1, **changes: Any) -> np.ndarray:
    """transformers' logits; the model stands in `folder` with blocks behind its last one, copies of that."""
    if name in special.FAMILIES:
        return special.predicting(name, folder, count, **changes)
    logits = make(name, folder, **{**MODELS.get(name, {}), **changes})
    config, path = json.loads((folder / "config.json").read_text()), folder / "model.safetensors"
    tensors, rng = load_file(path), np.random.default_rng(7 if name == "step35" else 5)  # 5: a row that float32 spoils
    if name in APART:
        return apart(logits, config, tensors, path)
    text = config.get("text_config", config)
    blocks, width = text["num_hidden_layers"], text["hidden_size"]
    like = f"model.layers.{LIKE.get(name, blocks - 1)}."
    of_one = {key: value for key, value in tensors.items() if key.startswith(like)}
    for n in range(blocks, blocks + count):
        at = f"model.layers.{n}."
        share = special.SHARE ** (1 + n - blocks)
        tensors |= {key.replace(like, at): value * share for key, value in of_one.items()}
        shapes = {
            "eh_proj": (width, 2 * width),
            "enorm": (width,),
            "hnorm": (width,),
            FINAL.get(name, "shared_head.norm"): (width,),
        }
        shapes |= dict.fromkeys(OWN.get(name, ("embed_tokens", "shared_head.head")), (text["vocab_size"], width))
        tensors |= {f"{at}{key}.weight": rng.normal(0, 0.3, size).astype(np.float32) for key, size in shapes.items()}
    save_file(tensors, path)
    text["num_nextn_predict_layers"] = count
    (folder / "config.json").write_text(json.dumps(config))
    return logits


def apart(logits: np.ndarray, config: dict[str, Any], tensors: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """Qwen's way: an attending block of the decoder again, under other names, and one matrix and three norms."""
    text, rng = config.get("text_config", config), np.random.default_rng(5)
    attending, width = text["layer_types"].index("full_attention"), text["hidden_size"]
    stem = next(key for key in tensors if f"layers.{attending}." in key).partition("layers.")[0]
    start = f"{stem}layers.{attending}."
    of_one = {key: value for key, value in tensors.items() if key.startswith(start)}
    tensors |= {key.replace(start, "mtp.layers.0."): value * special.SHARE for key, value in of_one.items()}
    shapes = {
        "fc": (width, 2 * width),
        "pre_fc_norm_embedding": (width,),
        "pre_fc_norm_hidden": (width,),
        "norm": (width,),
    }
    tensors |= {f"mtp.{key}.weight": rng.normal(0, 0.3, size).astype(np.float32) for key, size in shapes.items()}
    save_file(tensors, path)
    return logits


def states_before(name: str, folder: Path, tokens: list[int] = TOKENS) -> np.ndarray:
    """transformers' normalized states of the last block of the decoder, float32 `(tokens, width)`."""
    if name in special.FAMILIES:
        return special.states_before(name, folder, tokens)
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].numpy()


def _states_of(block: Any) -> Any:
    """The block, of whose results the first is passed on: GLM-5's gives what its indexer chose, too."""
    import torch

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, *args: Any, **more: Any) -> Any:
            found = self.block(*args, **more)
            return found[0] if isinstance(found, tuple) else found

    return States()


def further_logits(name: str, folder: Path, count: int = 1) -> np.ndarray:
    """What transformers' own module of such a block computes of the saved model, float32 `(rows, vocab)`: for each
    block in turn, one row fewer than the block before it."""
    if name in special.FAMILIES:
        return special.further_logits(name, folder, count)
    import torch
    import transformers
    from transformers.modeling_layers import MtpLayer

    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32).eval()
    decoder, tensors = model.get_decoder(), load_file(folder / "model.safetensors")
    of_text = copy.deepcopy(model.config.get_text_config())
    north = name.startswith("cohere2moe")
    if north and not of_text.rms_norm_eps:
        of_text.rms_norm_eps = of_text.layer_norm_eps  # by whatever name, that of all norms
    last = of_text.num_hidden_layers - 1
    like = of_text.layer_types.index("full_attention") if name in APART else LIKE.get(name, last)
    kind = {"layer_type": "full_attention"} if name == "step35" else {}
    pieces = zip(
        ("eh_proj", "enorm", "hnorm", "post_norm"),
        ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        if name in APART
        else [
            f"model.layers.{{n}}.{each}" for each in ("eh_proj", "enorm", "hnorm", FINAL.get(name, "shared_head.norm"))
        ],
        strict=True,
    )
    places = dict(pieces)
    rows, tokens = [], torch.tensor([TOKENS])
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states[-1]
        for ahead in range(1, 1 + count):
            n = last + ahead
            block = copy.deepcopy(decoder.layers[like])
            block.load_state_dict({key: value * special.SHARE**ahead for key, value in block.state_dict().items()})
            if north:  # in llama.cpp's graph of such a block queries and keys rotate, and see everything
                block.self_attn.sliding_window = 1 << 20
            layer = MtpLayer(of_text, lambda *_, block=block: _states_of(block), type(decoder.norm), like).eval()
            for own, theirs in places.items():
                getattr(layer, own).weight.copy_(torch.from_numpy(tensors[f"{theirs.format(n=n)}.weight"]))
            read, at = tokens[:, ahead:], torch.arange(ahead, len(TOKENS))[None]
            own_rows = tensors.get(f"model.layers.{n}.embed_tokens.weight")
            embedded = model.get_input_embeddings()(read) if own_rows is None else torch.from_numpy(own_rows)[read]
            mask = torch.full((at.shape[1],) * 2, -torch.inf).triu(1)[None, None]
            turned = decoder.rotary_emb(embedded, position_ids=at, **kind)
            states = layer(embedded, states[:, :-1], turned, mask, at, None)
            heads = [tensors.get(f"model.layers.{n}.{own}.weight") for own in ("shared_head.head", f"{_STEP}.output")]
            head = next((torch.from_numpy(found) for found in heads if found is not None), None)
            weights = model.lm_head.weight if head is None else head
            rows.append((states @ weights.T)[0].numpy() * (of_text.logit_scale if north else 1))
    return np.concatenate(rows)
