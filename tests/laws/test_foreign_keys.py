"""A key of another family that a class does not read changes nothing of what a configuration means: files carry such
keys from the models they were made of."""

from __future__ import annotations

import fnmatch
import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import GgferryError
from helpers.tiny_models import TINY, make

pytestmark = pytest.mark.filterwarnings("ignore")
FOREIGN: dict[str, Any] = {
    "n_inner": 5,
    "intermediate_size": 7,
    "ffn_hidden_size": 9,
    "ffn_dim": 11,
    "n_embd": 3,
    "hidden_dim": 3,
    "n_layer": 2,
    "n_head": 5,
    "num_layers": 2,
    "multi_query_group_num": 3,
    "kv_channels": 5,
    "n_head_kv": 3,
    "num_kv_heads": 3,
    "n_positions": 3,
    "seq_length": 3,
    "layer_norm_eps": 0.3,
    "layer_norm_epsilon": 0.3,
    "layernorm_epsilon": 0.3,
    "norm_epsilon": 0.3,
    "norm_eps": 0.3,
    "rms_norm_eps": 0.3,
    "activation_function": "relu",
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "mlp_hidden_act": "relu",
    "rotary_dim": 4,
    "rotary_pct": 0.5,
    "rotary_emb_base": 77.0,
    "sliding_window": 5,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "use_parallel_residual": True,
    "parallel_attn": True,
    "alibi": True,
    "multi_query": True,
    "new_decoder_architecture": True,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 3.0,
    "logits_scaling": 3.0,
    "attention_multiplier": 3.0,
    "scale_emb": 3.0,
    "scale_depth": 3.0,
    "dim_model_base": 3,
    "logit_scale": 3.0,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 3,
    "qk_layernorm": True,
    "use_qk_norm": True,
    "clip_qkv": 0.1,
    "num_experts": 3,
    "num_local_experts": 3,
    "n_routed_experts": 3,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 5,
    "norm_topk_prob": True,
    "routed_scaling_factor": 3.0,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "mlp_bias": True,
    "use_bias": True,
    "qkv_bias": True,
    "no_bias": True,
    "add_qkv_bias": True,
    "apply_residual_connection_post_layernorm": True,
    "position_embedding_type": "alibi",
    "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True,
    "do_layer_norm_before": False,
    "no_rope_layers": [0, 0, 0],
    "attn_temperature_tuning": True,
    "swiglu_limit": 0.1,
    "expansion_ratio": 3,
    "softmax_scale": 0.3,
}
"""Keys of configurations, each with a value that would change what a model computes that reads it."""
TAKEN = {
    "bloom n_positions": "its class knows no context: published files state one under names of others",
    "minimax-01* rotary_dim": "the weights were trained so; a note says that transformers' class turns whole heads",
}
"""Shell patterns of tiny models, and keys that are read all the same → why."""
UNKNOWN = {"falcon 7b, old", "falcon 40b, old"}
"""Models that name a class of their publisher, which reads keys of its own."""


@cache
def read(kind: str) -> tuple[str, frozenset[str]]:
    """The code of transformers for models of this type, and the names of the keys of its configuration."""
    found = CONFIG_MAPPING[kind]
    folder = Path(inspect.getfile(found)).parent
    code = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    return code, frozenset({*found.__dataclass_fields__, *found.attribute_map, *found.attribute_map.values()})


def foreign(kind: str) -> dict[str, Any]:
    code, known = read(kind)
    return {key: value for key, value in FOREIGN.items() if key not in known and not re.search(rf"\b{key}\b", code)}


def meaning(folder: Path) -> Any:
    graph = understand(open_checkpoint(str(folder)))
    conventions = graph.dialect.name, graph.architecture.name
    keyed = {param.name for param in graph.architecture.hparams if param.key}
    sizes = {name: value for name, value in graph.sizes.items() if name in keyed}
    return sizes, [(node.name, node.shape, repr(node.layout)) for node in graph.nodes], conventions


def apart(folder: Path, keys: dict[str, Any], expected: Any) -> str:
    """What becomes of the model with these keys, where that is something else; '' where it is not."""
    path = folder / "config.json"
    before = path.read_text()
    config = json.loads(before)
    config.get("text_config", config).update(keys)
    path.write_text(json.dumps(config))
    try:
        found = meaning(folder)
    except GgferryError as error:
        return f"refused: {error}"
    finally:
        path.write_text(before)
    if found == expected:
        return ""
    return f"other: { {name: found[0].get(name) for name in found[0] if found[0].get(name) != expected[0].get(name)} }"


def check(name: str, folder: Path) -> dict[str, str]:
    make(name, folder)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    listed = (model.split(" ") for model in TAKEN)
    taken = {key for model, *keys in listed if fnmatch.fnmatch(name, model) for key in keys}
    keys = {key: value for key, value in foreign(text.get("model_type", "")).items() if key not in {*text, *taken}}
    expected = meaning(folder)
    if not apart(folder, keys, expected):
        return {}
    return {key: said for key, value in keys.items() if (said := apart(folder, {key: value}, expected))}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*TINY} - UNKNOWN))
def test_a_key_that_the_class_does_not_read_changes_nothing(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path) == {}
