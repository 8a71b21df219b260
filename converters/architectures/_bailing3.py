"""Ling 3: the bounds of its experts, of which a configuration lists more than there are blocks, or fewer; which blocks
attend to everything, as those that predict further tokens do.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _kda as kda
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.schema.architecture import Caveat, HParam
from ggferry.converters.schema.derivations import Derivation, Values


def attending(values: Values) -> tuple[int, ...]:
    """Return attention.head_count_kv: 1 in the blocks that attend to everything, 0 in the others."""
    return (*kda.attending(values), *(1,) * nextn.count(values))


def _length(name: str) -> Derivation:
    def count(values: Values) -> int:
        return len(values[name])

    return count


def _padded(name: str) -> Derivation:
    def bounds(values: Values) -> tuple[float, ...] | None:
        listed = values.get(name)
        count = values["n_blocks"]
        return None if listed is None else (*listed[:count], *([0.0] * (count - len(listed))))

    return bounds


def limited(values: Values) -> bool:
    """Return whether a configuration bounds the experts of some block."""
    found = [values.get(name) or 0 for name in ("expert_limits", "shared_limits", "expert_limit", "shared_limit")]
    return any(any(each) if isinstance(each, tuple) else each for each in found)


# SGLang and vLLM (`_get_swiglu_limit`), with which the publisher serves it, and llama.cpp's `conversion/bailingmoe3.py`
# read the lists; neither transformers 5.24 (`modeling_bailing_hybrid.py`) nor `modeling_bailing_moe_v3.py` does.
BOUNDED = Caveat(
    "limited == 1",
    "expert_swiglu_limit_list bounds what experts compute: SGLang, vLLM and llama.cpp do so, transformers and the code "
    "published with the model do not read it, and compute something else: the former are followed",
    differs_in="transformers",
)


def bounds(name: str, key: str, place: str) -> tuple[HParam, ...]:
    """Return the bound of that name, one a block; null in a list stands for none, as what it lacks does."""
    declared = f"{name}s"
    return (
        HParam(f"n_{declared}", None, derive=_length(declared), required=False),
        HParam(declared, None, common.F32, {"hf": place}, length=f"n_{declared}", null=0.0, required=False),
        HParam(name, key, common.F32, derive=_padded(declared), length="n_blocks", allow_scalar=True, required=False,
               undo=limits.listed_as(declared, name, "n_blocks")),
    )
