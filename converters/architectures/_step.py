"""Step 3.5: what its configuration lists block by block, with entries behind the last block for those that predict
further tokens, and what GGUF wants of it.
"""

from collections.abc import Sequence
from typing import Any

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Derivation, Values, llama3_factors
from ggferry.formats.gguf.values import ValueType


def listed(name: str, places: str, kind: ValueType, **more: Any) -> tuple[HParam, HParam]:
    """Return a list of the configuration, of whatever length, and its length."""
    return (
        HParam(name, None, kind, {"hf": places}, length=f"{name}_count", allow_scalar=True, required=False, **more),
        HParam(f"{name}_count", None, derive=lambda values: len(_items(values[name])), required=False),
    )


def _items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def windows(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window.

    Those that predict further tokens are listed behind the others, or apart; where they are not, they have none.
    """
    kinds, count, further = _items(values["kinds"]), values["n_layer"], nextn.count(values)
    own = (kinds[count:] or _items(values.get("kinds_further") or ()))[:further]
    return (*kinds[:count], *own, *(False,) * (further - len(own)))


def by_kind(full: str, windowed: str) -> Derivation:
    """Return a derivation: for each block the one number or, where it has a window, the other."""

    def each(values: Values) -> tuple[int, ...]:
        return tuple(int(values[windowed if window else full]) for window in values["swa_layers"])

    return each


def of_full_blocks(values: Values) -> float:
    """Return the rotary base of blocks without a window."""
    return _of_kind(values, False)


def of_windows(values: Values) -> float | None:
    """Return the rotary base of blocks with a window; None where none has one."""
    return _of_kind(values, True) if any(values["swa_layers"]) else None


def _of_kind(values: Values, window: bool) -> float:
    declared, kinds = _items(values["bases"]), values["swa_layers"]
    declared = declared if declared[1:] else declared * len(kinds)
    bases = {float(base) for base, kind in zip(declared, kinds, strict=False) if kind == window}
    if len(bases) != 1:
        raise ValueError(f"blocks {'with' if window else 'without'} a window have {len(bases)} rotary bases")
    return bases.pop()


def rotated(values: Values) -> tuple[int, ...]:
    """Return how much of a head rotates, block by block: half of it without a window, all with one."""
    width = int(values["head_dim"])
    return tuple(width if window else width // 2 for window in values["swa_layers"])


def fractions_are_those(values: Values) -> int:
    """Return 1 where the listed fractions are those that llama.cpp rotates, else 0."""
    expected = [1.0 if window else 0.5 for window in values["swa_layers"][: values["n_layer"]]]
    return int(list(_items(values["fractions"])[: values["n_layer"]]) == expected)


def fraction_where_silent(values: Values) -> float | None:
    """Return how much of a head blocks without a window turn by a configuration that does not say it: transformers'
    class turns all."""
    return 1.0 if "hf_class" in values and "fractions" not in values else None


def leading_dense(values: Values) -> int:
    """Return how many blocks precede the first one with experts, after which all have them."""
    count = values["n_layer"]
    if "sparse_layers" in values:
        sparse = list(values["sparse_layers"])[:count]
    else:
        numbers = {int(text) for text in str(values["sparse_numbers"]).split(",") if text.strip()}
        sparse = [n in numbers for n in range(count)]
    first = sparse.index(True) if True in sparse else count
    if not all(sparse[first:]):
        raise ValueError("dense blocks stand between blocks of experts")
    return first


def limits(name: str) -> Derivation:
    """Return a derivation: the listed bounds of the blocks; None where none is bounded."""

    def each(values: Values) -> tuple[float, ...] | None:
        count, found = values["n_layer"] + nextn.count(values), [float(limit) for limit in _items(values[name])]
        return (*found[:count], *(0.0,) * (count - len(found))) if any(found[:count]) else None

    return each


def kinds_of_blocks(values: Values) -> Values:
    """Return what a configuration lists of the blocks' windows: the inverse of `windows`."""
    count, found = values["n_layer"], values["swa_layers"]
    return {"kinds": found[:count], "kinds_further": found[count:] or None}


def fractions(values: Values) -> Values:
    """Return how much of a head turns, which the graph says: the inverse of `rotated`."""
    return {"fraction_full": 0.5, "fraction_swa": 1.0}


def scaling(values: Values) -> Values:
    """Return what rotary factors of LLaMA 3 were computed from: the inverse of `factors`."""
    from ggferry.converters.schema.inverses.rope import llama3  # needed for folders only

    found = values.get("rope_freqs.weight")
    if found is None:
        return {}
    width = int(values["head_dim"]) // 2
    return llama3({**values, "n_rot": width, "rope_freqs.weight": found[: width // 2]})


def factors(values: Values) -> Sequence[float] | None:
    """Return LLaMA 3's factors of the rotated half of a head, and ones for the rest, `(head_dim / 2,)`."""
    width = int(values["head_dim"])
    found = llama3_factors({**values, "n_rot": width // 2})
    return None if found is None else [*found, *(1.0,) * (width // 2 - len(found))]


BASE_OF_WINDOWS = HParam(
    "rope_base_swa", "rope.freq_base_swa", common.F32,
    {"hf": "rope_parameters.sliding_attention.rope_theta"}, derive=of_windows, required=False,
    check="rope_base_swa > 1",
)
