"""Tiny models whose blocks that predict further tokens are no layers of transformers' decoder: made, and computed by
transformers' own parts in the order of the graph that runs them (llama.cpp `src/models`, b11549, `graph_mtp`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from helpers.tiny import TOKENS
from helpers.tiny_models import make

SHARE = 0.8
"""What every weight is multiplied by of the decoder's block that such a block is a copy of: no value is as it was."""


@dataclass(frozen=True)
class Family:
    """How the blocks of one family are made and computed.

    Attributes:
        add: (configuration, tensors, generator, count) → what the saved model gets besides, by name; the configuration
            is changed in place.
        further: (model, tensors, count) → transformers' rows of each block, as `further_logits` has them.
        extras: What such a block has more than an ordinary one, of `nextn.*`.
        count: How many blocks a test may ask for.
        config: Changes of the tiny model's configuration.
        states: (model, tokens) → what such a block reads of each token, `(1, tokens, …)`.
    """

    add: Callable[[dict[str, Any], dict[str, np.ndarray], np.random.Generator, int], dict[str, np.ndarray]]
    further: Callable[[Any, dict[str, np.ndarray], int], np.ndarray]
    extras: tuple[str, ...] = ("eh_proj", "enorm", "hnorm")
    count: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    states: Callable[[Any, list[int]], Any] | None = None


def predicting(name: str, folder: Path, count: int = 1, **changes: Any) -> np.ndarray:
    """Save the model with its blocks; return transformers' logits of the decoder."""
    family = FAMILIES[name]
    logits = make(name, folder, **{**family.config, **changes})
    config, path = json.loads((folder / "config.json").read_text()), folder / "model.safetensors"
    tensors = load_file(path)
    added = family.add(config, tensors, np.random.default_rng(5), count)
    save_file({**tensors, **{name: np.ascontiguousarray(x, np.float32) for name, x in added.items()}}, path)
    (folder / "config.json").write_text(json.dumps(config))
    return logits


def further_logits(name: str, folder: Path, count: int = 1) -> np.ndarray:
    """Return what the blocks compute of the saved model, float32 `(rows, vocab)`, one row fewer a block further."""
    import torch

    with torch.no_grad():
        return FAMILIES[name].further(_loaded(folder), load_file(folder / "model.safetensors"), count)


def states_before(name: str, folder: Path, tokens: list[int] = TOKENS) -> np.ndarray:
    """Return what the first block reads of each token besides the next one, float32 `(tokens, width)`."""
    import torch

    model, family = _loaded(folder), FAMILIES[name]
    with torch.no_grad():
        return (family.states or _last_states)(model, tokens)[0].flatten(1).numpy()


def _loaded(folder: Path) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32).eval()


def _last_states(model: Any, tokens: list[int] = TOKENS) -> Any:
    """The normalized states behind the decoder, `(1, tokens, n_embd)`."""
    import torch

    return model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1]


def _streams(model: Any, tokens: list[int] = TOKENS) -> Any:
    """The states, or streams of them, behind the decoder's last block, before its norm, `(1, tokens, …)`."""
    import torch

    found = []
    hook = model.get_decoder().layers[-1].register_forward_hook(lambda module, read, out: found.append(out))
    model(torch.tensor([tokens]))
    hook.remove()
    return found[0]


def _random(rng: np.random.Generator, prefix: str, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Matrices and norms by name, of which nothing is zero, one or alike; '__' stands for a dot."""
    return {f"{prefix}{name.replace('__', '.')}.weight": rng.normal(0, 0.3, size) for name, size in shapes.items()}


def _scaled(tensors: dict[str, np.ndarray], start: str, to: str) -> dict[str, np.ndarray]:
    """The tensors whose names begin with `start`, scaled, under names that begin with `to`."""
    return {to + name.removeprefix(start): x * SHARE for name, x in tensors.items() if name.startswith(start)}


def _copied(block: Any) -> Any:
    """A block of the decoder, with the values of `_scaled`."""
    found = copy.deepcopy(block)
    found.load_state_dict({name: x * SHARE for name, x in found.state_dict().items()})
    return found


def _weight(tensors: dict[str, np.ndarray], name: str) -> Any:
    import torch

    return torch.from_numpy(tensors[f"{name}.weight"])


def _norm(model: Any, tensors: dict[str, np.ndarray], name: str) -> Any:
    """transformers' norm of this family with the weights of that name."""
    decoder = model.get_decoder()
    found = copy.deepcopy(decoder.norm_f if hasattr(decoder, "norm_f") else decoder.norm)
    found.weight.copy_(_weight(tensors, name))
    return found


# --- GLM-5.3: a layer behind the last, without the streams; indexer of its own ---------------------------------------

_GLM_LIKE = 3


def _glm_add(
    config: dict[str, Any], tensors: dict[str, np.ndarray], rng: np.random.Generator, count: int
) -> dict[str, np.ndarray]:
    text, found = config["text_config"], {}
    width, rows = text["hidden_size"], (text["vocab_size"], text["hidden_size"])
    for n in range(text["num_hidden_layers"], text["num_hidden_layers"] + count):
        at = f"model.language_model.layers.{n}."
        like = _scaled(tensors, f"model.language_model.layers.{_GLM_LIKE}.", at)
        found |= {name: x for name, x in like.items() if ".hc_" not in name}
        norms = dict.fromkeys(("enorm", "hnorm", "shared_head__norm"), (width,))
        found |= _random(rng, at, eh_proj=(width, 2 * width), embed_tokens=rows, shared_head__head=rows, **norms)
    text["num_nextn_predict_layers"] = count
    return found


def _glm_further(model: Any, tensors: dict[str, np.ndarray], count: int) -> np.ndarray:
    import torch

    first, block, rows = model.config.text_config.num_hidden_layers, _copied(model.get_decoder().layers[_GLM_LIKE]), []
    states = _last_states(model)
    for ahead in range(1, 1 + count):
        at = f"model.language_model.layers.{first + ahead - 1}."
        read = _weight(tensors, f"{at}embed_tokens")[torch.tensor([TOKENS[ahead:]])]
        both = _norm(model, tensors, f"{at}enorm")(read), _norm(model, tensors, f"{at}hnorm")(states[:, :-1])
        x = torch.cat(both, -1) @ _weight(tensors, f"{at}eh_proj").T
        seen = torch.ones(x.shape[:2], dtype=torch.bool)
        x = x + block.self_attn(hidden_states=block.input_layernorm(x), attention_mask=seen)[0]
        x = x + block.mlp(block.post_attention_layernorm(x))
        states = _norm(model, tensors, f"{at}shared_head.norm")(x)
        rows.append((states @ _weight(tensors, f"{at}shared_head.head").T)[0].numpy())
    return np.concatenate(rows)


# --- Nemotron 3: two layers, attention and experts, are one block --------------------------------------------------

_ATTENDS, _FEEDS = 2, 3


def _nemotron_add(
    config: dict[str, Any], tensors: dict[str, np.ndarray], rng: np.random.Generator, count: int
) -> dict[str, np.ndarray]:
    width, first, second = config["hidden_size"], "mtp.layers.0.", "mtp.layers.1."
    config["num_nextn_predict_layers"] = count
    return {
        **_scaled(tensors, f"backbone.layers.{_ATTENDS}.", first),
        **_scaled(tensors, f"backbone.layers.{_FEEDS}.", second),
        **_random(rng, first, eh_proj=(width, 2 * width), enorm=(width,), hnorm=(width,)),
        **_random(rng, second, final_layernorm=(width,)),
    }


def _nemotron_further(model: Any, tensors: dict[str, np.ndarray], count: int) -> np.ndarray:
    import torch

    states, decoder = _last_states(model), model.get_decoder()
    read = model.get_input_embeddings()(torch.tensor([TOKENS[1:]]))
    first, second = "mtp.layers.0.", "mtp.layers.1."
    both = _norm(model, tensors, f"{first}enorm")(read), _norm(model, tensors, f"{first}hnorm")(states[:, :-1])
    x = torch.cat(both, -1) @ _weight(tensors, f"{first}eh_proj").T
    mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    x = _copied(decoder.layers[_ATTENDS])(x, attention_mask=mask)
    x = _copied(decoder.layers[_FEEDS])(x)
    states = _norm(model, tensors, f"{second}final_layernorm")(x)
    return (states @ model.lm_head.weight.T)[0].numpy()


# --- Qwen4-Exp: the streams are read, and mixed again ---------------------------------------------------

_QWEN4 = "mtp.layers.0."


def _qwen4_add(
    config: dict[str, Any], tensors: dict[str, np.ndarray], rng: np.random.Generator, count: int
) -> dict[str, np.ndarray]:
    text = config.get("text_config", config)
    width, streams, low = text["hidden_size"], text["hidden_size"] * text["hc_count"], text["hc_lowrank"]
    like = text["layer_types"].index("indexed_attention")
    stem = next(name for name in tensors if f"layers.{like}." in name).partition("layers.")[0]
    return {
        **_scaled(tensors, f"{stem}layers.{like}.", _QWEN4),
        **_random(
            rng,
            "mtp.",
            fc_embedding=(width, width),
            fc_hidden=(width, width),
            pre_fc_norm_embedding=(width,),
            pre_fc_norm_hidden=(streams,),
            hyper_connection_mixer__hc_norm=(streams,),
            hyper_connection_mixer__input_mix_weight_down=(low, streams),
            hyper_connection_mixer__input_mix_weight_up=(streams, low),
        ),
    }


def _qwen4_further(model: Any, tensors: dict[str, np.ndarray], count: int) -> np.ndarray:
    import torch

    config, decoder = model.config.get_text_config(), model.get_decoder()
    before = _streams(model)[:, :-1]
    eps = config.rms_norm_eps

    def norm(x: Any, name: str) -> Any:  # SGLang's GemmaRMSNorm: over the whole last axis
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + _weight(tensors, f"mtp.{name}"))

    read = norm(model.get_input_embeddings()(torch.tensor([TOKENS[1:]])), "pre_fc_norm_embedding")
    each = norm(before, "pre_fc_norm_hidden").unflatten(-1, (config.hc_count, config.hidden_size))
    joined = (read @ _weight(tensors, "mtp.fc_embedding").T)[..., None, :] + each @ _weight(tensors, "mtp.fc_hidden").T
    at = torch.arange(1, len(TOKENS)).view(1, 1, -1).expand(3, 1, -1)
    mask = torch.full((before.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    block = _copied(decoder.layers[config.layer_types.index("indexed_attention")])
    x = block(joined.flatten(-2), decoder.rotary_emb(joined, at), attention_mask=mask)
    mixer = copy.deepcopy(decoder.hyper_connection_mixer)
    names = ("hc_norm", "input_mix_weight_down", "input_mix_weight_up")
    mixer.load_state_dict({f"{n}.weight": _weight(tensors, f"mtp.hyper_connection_mixer.{n}") for n in names})
    return (mixer(x) @ model.lm_head.weight.T)[0].numpy()


# --- DeepSeek V4: a block of the decoder's kind with a window, which mixes its streams itself ----------------------

_V4, _V4_LIKE = "mtp.0.", 4


def _v4_add(
    config: dict[str, Any], tensors: dict[str, np.ndarray], rng: np.random.Generator, count: int
) -> dict[str, np.ndarray]:
    width, streams = config["hidden_size"], config["hc_mult"]
    head = {"base": (streams,), "fn": (streams, streams * width), "scale": (1,)}
    return {
        **_scaled(tensors, f"model.layers.{_V4_LIKE}.", _V4),
        **_random(rng, _V4, e_proj=(width, width), h_proj=(width, width)),
        **_random(rng, _V4, enorm=(width,), hnorm=(width,), norm=(width,)),
        **{f"{_V4}hc_head_{part}": rng.normal(0, 0.3, size) for part, size in head.items()},
    }


def _v4_further(model: Any, tensors: dict[str, np.ndarray], count: int) -> np.ndarray:
    import torch

    config, decoder = model.config, model.get_decoder()
    before, tokens = _streams(model)[:, :-1], torch.tensor([TOKENS[1:]])
    read = _norm(model, tensors, f"{_V4}enorm")(model.get_input_embeddings()(tokens))
    read = read @ _weight(tensors, f"{_V4}e_proj").T
    x = read[:, :, None] + _norm(model, tensors, f"{_V4}hnorm")(before) @ _weight(tensors, f"{_V4}h_proj").T
    at = torch.arange(1, len(TOKENS))[None]
    kinds = ("main", "compress")
    rotations = {kind: decoder.rotary_emb(read, position_ids=at, layer_type=kind) for kind in kinds}
    back = at[0][:, None] - at[0][None, :]
    mask = torch.where((back < 0) | (back >= config.sliding_window), -torch.inf, 0.0)[None, None]
    block = _copied(decoder.layers[_V4_LIKE])
    x = block(x, input_ids=tokens, position_embeddings=rotations, position_ids=at, attention_mask=mask)
    mixer = copy.deepcopy(decoder.hc_head)
    mixer.load_state_dict({f"hc_{p}": torch.from_numpy(tensors[f"{_V4}hc_head_{p}"]) for p in ("fn", "base", "scale")})
    return (_norm(model, tensors, f"{_V4}norm")(mixer(x)) @ model.lm_head.weight.T)[0].numpy()


# --- MiMo-V2: blocks with a window and no experts, which read and pass on states that no norm has met ---------------

_MIMO_LIKE = 1
"""A block with a window, whose attention such a block is a copy of; its feed-forward is dense, and of its own."""


def _mimo_add(
    config: dict[str, Any], tensors: dict[str, np.ndarray], rng: np.random.Generator, count: int
) -> dict[str, np.ndarray]:
    width, wide, found = config["hidden_size"], config["intermediate_size"], {}
    for n in range(count):
        at = f"model.mtp.layers.{n}."
        like = _scaled(tensors, f"model.layers.{_MIMO_LIKE}.self_attn.", f"{at}self_attn.")
        norms = ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm")
        found |= {**like, **_random(rng, at, eh_proj=(width, 2 * width), **dict.fromkeys(norms, (width,)))}
        found |= _random(rng, f"{at}mlp.", gate_proj=(wide, width), up_proj=(wide, width), down_proj=(width, wide))
    return found


def _mimo_further(model: Any, tensors: dict[str, np.ndarray], count: int) -> np.ndarray:
    import torch

    decoder, states, rows = model.get_decoder(), _streams(model), []
    attention = copy.deepcopy(decoder.layers[_MIMO_LIKE].self_attn)
    for ahead in range(1, 1 + count):
        at = f"model.mtp.layers.{ahead - 1}."
        files = {name: name.replace("sinks", "attention_sink_bias") for name in attention.state_dict()}
        own = {name: torch.from_numpy(tensors[f"{at}self_attn.{theirs}"]) for name, theirs in files.items()}
        attention.load_state_dict(own)
        read = model.get_input_embeddings()(torch.tensor([TOKENS[ahead:]]))
        both = _norm(model, tensors, f"{at}enorm")(read), _norm(model, tensors, f"{at}hnorm")(states[:, :-1])
        x = torch.cat(both, -1) @ _weight(tensors, f"{at}eh_proj").T
        places = torch.arange(ahead, len(TOKENS))[None]
        turned = decoder.rotary_emb(x, places, "sliding_attention")
        back = places[0][:, None] - places[0][None, :]
        mask = torch.where((back < 0) | (back >= model.config.sliding_window), -torch.inf, 0.0)[None, None]
        x = x + attention(_norm(model, tensors, f"{at}input_layernorm")(x), turned, mask)[0]
        fed = _norm(model, tensors, f"{at}pre_mlp_layernorm")(x)
        gate, up, down = (_weight(tensors, f"{at}mlp.{part}_proj").T for part in ("gate", "up", "down"))
        states = x + (torch.nn.functional.silu(fed @ gate) * (fed @ up)) @ down
        rows.append((_norm(model, tensors, f"{at}final_layernorm")(states) @ model.lm_head.weight.T)[0].numpy())
    return np.concatenate(rows)


ONLY_ALONE: dict[str, Family] = {
    name: Family(_v4_add, _v4_further, ("eh_proj", "enorm", "hnorm", "shared_head_norm"), states=_streams)
    for name in ("deepseek v4", "deepseek v4 yarn")
}
"""Families whose blocks and decoder cannot be in one file."""
OWN_BLOCKS: dict[str, Family] = {
    "glm 5.3 flash": Family(
        _glm_add,
        _glm_further,
        ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head_head", "shared_head_norm"),
        count=2,
    ),
    "mimo2": Family(_mimo_add, _mimo_further, count=2, config={"sliding_window": 5}, states=_streams),
    **{
        name: Family(
            _nemotron_add,
            _nemotron_further,
            ("eh_proj", "enorm", "hnorm", "shared_head_norm"),
            config={"time_step_min": 1e-9},
        )  # which llama.cpp does not read
        for name in ("nemotron-h moe", "nemotron-h latent")
    },
    **{
        name: Family(
            _qwen4_add, _qwen4_further, ("eh_proj", "enorm", "hnorm", "hc_head_norm", "hc_head_down"), states=_streams
        )
        for name in ("qwen4exp", "qwen4exp that sees")
    },
}
"""Such families by the name of the tiny model."""
FAMILIES = {**OWN_BLOCKS, **ONLY_ALONE}
