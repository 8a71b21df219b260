"""Keys of config.json as transformers 4 had them, which mlx-lm reads where transformers 5 has others.

Source: mlx-lm 0.32.2, `ModelArgs` of `mlx_lm/models`; transformers `modeling_rope_utils.py`.
"""

from __future__ import annotations

from ggferry.formats.json_files.kinds import JSONObject

RENAMED = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "gpt2": {"n_positions": "n_ctx"},
    "qwen2_moe": {"num_local_experts": "num_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
"""Model type → key → what its class in mlx-lm calls it."""


def older_keys(config: JSONObject) -> JSONObject:
    """Return the keys that a configuration lacks and mlx-lm reads, of the text model within it, too."""
    found = _older(config)
    inner = config.get("text_config")
    if isinstance(inner, dict):
        found["text_config"] = {**inner, **_older(inner)}
    return found


def _older(config: JSONObject) -> JSONObject:
    rotation = config.get("rope_parameters")
    found: JSONObject = {}
    if isinstance(rotation, dict):
        found |= _rotation(rotation)
    for key, name in RENAMED.get(str(config.get("model_type")), {}).items():
        if key in found or key in config:
            found[name] = found.get(key, config.get(key))
    found = {key: value for key, value in found.items() if config.get(key) is None}
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type") == "default":
        found["rope_scaling"] = None  # some classes look for numbers of a scaling in it
    if "num_experts" in found or ("num_experts" in config and config.get("model_type") in RENAMED):
        found.setdefault("mlp_only_layers", config.get("mlp_only_layers") or [])
    return found


def _rotation(rotation: JSONObject) -> JSONObject:
    """Return base, share and scaling of a rotation; where kinds of blocks have their own, those of both."""
    whole, local = rotation.get("full_attention"), rotation.get("sliding_attention")
    if isinstance(whole, dict):
        found = _rotation(whole)
        if isinstance(local, dict) and "rope_theta" in local:
            found["rope_local_base_freq"] = local["rope_theta"]
        return found
    found = {key: rotation[key] for key in ("rope_theta", "partial_rotary_factor") if key in rotation}
    kind = rotation.get("rope_type", "default")
    if kind != "default":
        found["rope_scaling"] = {**rotation, "type": kind}
    return found
