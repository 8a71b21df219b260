"""Dots 3 Note: how many experts each block of its vision encoder has, and which of them a patch passes through.

A configuration says it as published (`pyramid_num_routed`, of which a number below one means a dense block) or as
transformers writes it: the kinds of blocks, and what the experts of single blocks have of their own. Source:
transformers `configuration_dots3_note.py`.
"""

from dataclasses import replace

from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Derivation, Values

PYRAMID = (*(0,) * 25, *range(4, 65, 4), 64)
"""The experts of the published model's blocks, which transformers takes where nothing lists them."""


def experts(values: Values) -> tuple[int, ...]:
    """Return the number of experts of every block, 0 for a dense one."""
    if "v_pyramid" in values:
        return tuple(max(0, number) for number in values["v_pyramid"])
    if "v_sparse" not in values:
        return PYRAMID
    own = _own(values, "v_listed_experts", len(values["v_sparse"]))
    usual = int(values["v_usual_experts"])
    return tuple((number or usual) if sparse else 0 for sparse, number in zip(values["v_sparse"], own, strict=True))


def used(values: Values) -> int:
    """Return how many experts a patch passes through: all of a block that has fewer. Raises ValueError for others."""
    count = int(values["v_stated_used"])
    own = _own(values, "v_listed_used", len(values["v_n_expert"]))
    for block, (few, number) in enumerate(zip(own, values["v_n_expert"], strict=True)):
        if few and number and few != min(count, number):
            raise ValueError(f"block {block} uses {few} of {number} experts, others {count}: GGUF has one number")
    return count


def _own(values: Values, name: str, count: int) -> tuple[int, ...]:
    """Return what single blocks have of their own, 0 for those that have nothing."""
    found = values.get(name, ())[:count]
    return (*found, *(0,) * (count - len(found)))


def _length_of(name: str) -> Derivation:
    return lambda values: len(values[name])


def listed(name: str, place: str, *, least: int = 0) -> tuple[HParam, HParam]:
    """Return a list that no key holds, null where it says nothing, and the number of its items."""
    fields = {"hf": f"vision_config.{place}"}
    return (
        HParam(f"v_{name}", None, fields=fields, length=f"v_n_{name}", null=0, least=least, required=False),
        HParam(f"v_n_{name}", None, derive=_length_of(f"v_{name}"), required=False),
    )


def either(param: HParam, name: str) -> HParam:
    """Return what a processor states in a file of its own form or, as published, one object deeper."""
    places = (f"{where}.{name}" for where in ("preprocessor", "preprocessor.vision_config"))
    return replace(param, fields={"hf": "|".join(places)})


EXPERTS = (
    *listed("pyramid", "pyramid_num_routed", least=-1),
    *listed("listed_experts", "per_layer_config.#.num_local_experts"),
    *listed("listed_used", "per_layer_config.#.num_experts_per_tok"),
    HParam("v_sparse", None, fields={"hf": "vision_config.mlp_layer_types"}, length="v_n_layer", required=False,
           words={"sparse": 1, "dense": 0}),
    HParam("v_usual_experts", None, fields={"hf": "vision_config.num_local_experts"}, required=False,
           defaults=(Default(64, "transformers' default", dialect="hf"),)),
    HParam("v_stated_used", None, fields={"hf": "vision_config.capacity_factor|vision_config.num_experts_per_tok"},
           required=False, defaults=(Default(2, "transformers' default", dialect="hf"),)),
    HParam("v_n_expert", "vision.expert_count_per_layer", derive=experts, length="v_n_layer"),
    HParam("v_n_expert_used", "vision.expert_used_count", derive=used, check="0 < v_n_expert_used"),
    HParam("v_n_ff_exp", None, fields={"hf": "vision_config.moe_intermediate_size"}, required=False),
)
"""What a configuration says of the experts, and the two keys that runtimes read."""
