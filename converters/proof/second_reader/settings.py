"""Read a configuration a second time, without our tables, and hold against it what they made of it.

A table says where config.json keeps a value and what its absence means, and both sides of the other proofs believe it.
Here stands only what a GGUF key is called in the configurations of all families together, as gguf-py's converters look
for it (llama.cpp `convert_hf_to_gguf.py`, `find_hparam`; `conversion/base.py`): where a configuration has these fields
and all of them agree, the key must have their value. A family that means something else is named in `OTHERWISE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ggferry.converters.model_graph.class_defaults.text_models import class_defaults
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known
from ggferry.formats.errors import VerificationError
from ggferry.formats.reader import Kind, kind_of

EPSILONS = (
    "rms_norm_eps",
    "norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "layernorm_epsilon",
    "rms_norm_epsilon",
)
FIELDS: Mapping[str, tuple[str, ...]] = {
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.layer_norm_rms_epsilon": EPSILONS,
    "attention.layer_norm_epsilon": EPSILONS,
    "attention.sliding_window": ("sliding_window", "sliding_window_size"),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.freq_base": ("rope_theta", "rotary_emb_base"),
    "rope.scaling.original_context_length": ("original_max_position_embeddings",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "residual_scale": ("residual_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "num_experts_per_topk"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
}
"""GGUF key without the architecture's name → fields, any of which may state it; what shapes of tensors do not tell."""

FORMULAS: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "attention.scale": ("query_pre_attn_scalar", lambda width: width**-0.5),  # Gemma
}
"""GGUF key → the field it follows from, and how."""

SILENT = frozenset(
    {
        "rope.freq_base",
        "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "expert_weights_scale",
    }
)
"""Keys whose absence means what the class takes; sizes are not among them, as classes know them under several names."""

OTHERWISE: Mapping[str, frozenset[str]] = {
    "attention.head_count": frozenset({"mamba", "mamba2"}),  # no attention: GGUF has 0
    "attention.layer_norm_epsilon": frozenset({"biogpt", "olmo", "glm5-next", "cohere2moe"}),
    "rope.freq_base": frozenset({"olmo3", "granite_swa", "dbrx", "gptj"}),
}
"""GGUF key → architectures, and model types of config.json, whose key means something else. The norms of BioGPT and
OLMo read no epsilon, those of GLM 5.3 and Cohere are not all alike; OLMo 3 takes a base for some blocks only, Granite
with windows a list, DBRX keeps its base in `attn_config`, GPT-J's and CodeGen's is a constant."""

UNREAD: Mapping[str, frozenset[str]] = {"rope_theta": frozenset({"gptneox", "laguna", "mellum", "modern-bert"})}
"""Field → architectures whose class does not read it beside its rotary parameters, but has names of its own, or one set
for each kind of block."""

ONLY: Mapping[str, frozenset[str]] = {
    "rotary_emb_base": frozenset({"gptneox", "qwen", "nomic-bert", "nomic-bert-moe", "jina-bert-v3"})
}
"""Field → the only architectures whose class, or the code published with them, reads it."""

OUTSIDE: Mapping[str, frozenset[str]] = {"original_max_position_embeddings": frozenset({"phi3"})}
"""Field → architectures whose class reads it beside its rotary parameters, and overwrites what they have."""

GROUPS = ("expert_group_count", "expert_group_used_count")
"""Keys that a model which chooses among all experts does not read (DeepSeek's `greedy`)."""

_BY_KIND = "rope_parameters.full_attention.rope_theta"
"""A default of classes that have rotary parameters for each kind of block."""

_SEES_ALL, _WINDOWED = "full_attention", "sliding_attention"
PARTS = ("text_config", "llm_config", "language_config")
NEAR = 1e-6  # float32
LARGEST = 1e300  # an integer of JSON may be no float at all


def check_settings(source: ModelGraph) -> int:
    """Hold what was understood of a configuration against the configuration; return how many values agree.

    Raises VerificationError.
    """
    checkpoint = source.checkpoint
    if kind_of(checkpoint.container) is not Kind.TRAINING or source.architecture.projector:
        return 0
    within = next((key for key in PARTS if isinstance(checkpoint.metadata.get(key), dict)), "")
    declared = checkpoint.metadata[within] if within else checkpoint.metadata
    known = class_defaults(checkpoint.metadata, within)
    silent: Mapping[str, Any] = known.values if known else {}
    kinds = (declared.get("model_type"), checkpoint.metadata.get("model_type"))
    names = {source.architecture.name, *(kind for kind in kinds if isinstance(kind, str))}
    agreed = 0
    for each in source.architecture.hparams:
        param = source.hparams.get(each.name)
        if each.key is None or param is None or param.known is Known.OVERRIDDEN:
            continue
        value = _single(param.value)
        if value is None or names & OTHERWISE.get(each.key, frozenset()):
            continue
        read = {
            k: _outside(v, source.architecture.name)
            for k, v in declared.items()
            if _is_read(k, source.architecture.name)
        }
        for place, expected in _claims(read, silent, each.key):
            if abs(value - expected) > NEAR * abs(expected):
                raise VerificationError(
                    f"{source.architecture.name}.{each.key} is not what config.json says in {place}",
                    path=checkpoint.path,
                    found=value,
                    expected=expected,
                )
            agreed += 1
    return agreed


def _is_read(field: str, architecture: str) -> bool:
    """Return whether the class of that architecture reads a field."""
    return architecture not in UNREAD.get(field, frozenset()) and (field not in ONLY or architecture in ONLY[field])


def _outside(value: Any, architecture: str) -> Any:
    """Return a value of the configuration without the members that the class of that architecture overwrites.

    Of rotary parameters for each kind of block, those of blocks that see all are the model's.
    """
    if not isinstance(value, Mapping):
        return value
    if _SEES_ALL in value or _WINDOWED in value:
        return {_SEES_ALL: _outside(value.get(_SEES_ALL, {}), architecture)}
    return {field: inner for field, inner in value.items() if architecture not in OUTSIDE.get(field, frozenset())}


def _claims(declared: Mapping[str, Any], silent: Mapping[str, Any], key: str) -> Iterator[tuple[str, float]]:
    """Yield where a key is stated, and as what; nothing where fields contradict each other.

    Args:
        declared: The configuration of the text model.
        silent: What its class takes where that is silent.
        key: The GGUF key, without the architecture's name.
    """
    if key == "rope.freq_base" and _several_rotations(declared, silent):
        return
    if key in GROUPS and declared.get("topk_method", silent.get("topk_method")) == "greedy":
        return
    fields = FIELDS.get(key, ())
    found = {field: set(_occurrences(declared, field)) for field in fields}
    if key in SILENT and not any(field in declared or values for field, values in found.items()):
        found = {field: set(_occurrences(silent, field)) for field in fields}
    values = set().union(*found.values())
    if len(values) == 1:
        yield next(field for field, each in found.items() if each), values.pop()
    if key in FORMULAS:
        field, formula = FORMULAS[key]
        values = set(_occurrences(declared if field in declared else silent, field))
        if len(values) == 1 and (value := values.pop()) > 0:
            yield field, formula(value)


def _several_rotations(declared: Mapping[str, Any], silent: Mapping[str, Any]) -> bool:
    """Return whether it is not one number that says how positions turn.

    Of several places the class chooses one; Hunyuan multiplies the base (`alpha`); a class with rotary parameters for
    each kind of block reads nothing of one set for all.
    """
    places = [key for key in ("rope_parameters", "rope_scaling") if declared.get(key)]
    if any(isinstance(declared[key], Mapping) and declared[key].get("alpha") for key in places):
        return True
    rotary = declared.get("rope_parameters")
    if _BY_KIND in silent and isinstance(rotary, Mapping) and not any(isinstance(x, Mapping) for x in rotary.values()):
        return True
    return len(places) > 1 or (isinstance(silent.get("rope_parameters"), Mapping) and "rope_parameters" not in places)


def _occurrences(declared: Mapping[str, Any], field: str) -> Iterator[float]:
    """Yield the numbers that a field has at the top and in the dictionaries of its rotary embeddings."""
    places = [declared, *(v for k in ("rope_parameters", "rope_scaling") if isinstance(v := declared.get(k), dict))]
    places += [inner for place in places[1:] for inner in place.values() if isinstance(inner, dict)]
    for place in places:
        value = place.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
            yield float(value)


def _single(value: Any) -> float | None:
    """Return a number, or the one number of a list; None for anything else."""
    values = set(value) if isinstance(value, tuple) else {value}
    one = values.pop() if len(values) == 1 else None
    return float(one) if isinstance(one, int | float) and not isinstance(one, bool) else None
