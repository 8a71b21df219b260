"""Prove the keys: compare what the output states with what its source gives.

In an output that was just written, every key must be the plan's. For a file that exists already, whoever wrote it, the
plan is made again from the source, and every key is compared in value and type. A difference in a key that only
describes the file is reported. A difference in one that changes what a model computes or generates is an error, unless
both sides mean the same by it or the user allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ggferry.converters.conversion_plan.steps import Plan, shard_metadata
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import same
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import by_name
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import VerificationError
from ggferry.formats.gguf.values import Value, ValueType, u32
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

DESCRIPTIVE = ("general.*", "quantize.imatrix.*", "tokenizer.huggingface.json", "tokenizer.rwkv.world")
"""Keys that describe a file, and copies of what other keys state: no runtime computes with them."""
TELLING = ("general.architecture", "general.type", "general.sampling.*")
"""Those of the descriptive keys that a runtime does act on."""
LAYOUT = ("general.alignment", "split.*", "ggferry.split.*")
"""How the file is laid out, which its reader has checked."""

# What llama.cpp takes where the key is absent, by tokenizer.ggml.model (src/llama-vocab.cpp, llama_vocab::impl::load)
ABSENT: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": True,
        "add_bos_token": True,
        "add_eos_token": False,
    },
    "gpt2": {"add_eos_token": False, "add_space_prefix": False},
    "t5": {
        "unknown_token_id": 2,
        "eos_token_id": 1,
        "padding_token_id": 0,
        "add_space_prefix": True,
        "remove_extra_whitespaces": False,
        "add_bos_token": False,
        "add_eos_token": True,
    },
    "bert": {
        "unknown_token_id": 100,
        "cls_token_id": 101,
        "separator_token_id": 102,
        "seperator_token_id": 102,
        "padding_token_id": 0,
        "mask_token_id": 103,
        "add_bos_token": True,
        "normalizer.lowercase": True,
    },
    "rwkv": {"add_bos_token": False, "add_eos_token": False, "add_space_prefix": False},
}

# Which option of a conversion explains a difference, by pattern; the first that fits
EXPLAINED: tuple[tuple[str, str], ...] = (
    ("general.sampling.*", "--metadata"),
    ("general.name", "--model-name"),
    ("general.architecture", "--arch"),
    ("general.*", "--model-name, --metadata or another name of the source"),
    ("quantize.imatrix.*", "--imatrix"),
    ("tokenizer.huggingface.json", "--huggingface-json"),
    ("tokenizer.ggml.pre", "--pre"),
    ("tokenizer.*", "--tokenizer-model, --tokenizer or, of a GGUF source, --override-kv"),
    ("*", "--hparam or, of a GGUF source, --override-kv"),
)
SHOWN = 8  # keys of a kind that are named
WIDTH = 60  # characters of a value that are shown


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value is not the same on both sides.

    Attributes:
        key: The key.
        place: The key, with the index of the first item that differs where both sides have arrays of one length.
        found: The output's value as shown; None where the key is absent.
        expected: The value that the source gives, as shown; None where it gives none.
    """

    key: str
    place: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        return f"{self.place}: {self.found or 'absent'} (the source gives {self.expected or 'none'})"


@dataclass(frozen=True, slots=True)
class KeyProof:
    """How many keys were compared, and which differ although nothing is wrong.

    Attributes:
        compared: Number of keys.
        described: Differences in keys that only describe the file.
        implied: Keys on one side only, whose absence on the other means the same value.
        allowed: Differences that the user allows.
    """

    compared: int
    described: tuple[Difference, ...] = ()
    implied: tuple[Difference, ...] = ()
    allowed: tuple[Difference, ...] = ()

    @property
    def apart(self) -> frozenset[str]:
        """The keys that differ."""
        return frozenset(one.key for one in (*self.described, *self.implied, *self.allowed))

    @property
    def notes(self) -> tuple[str, ...]:
        """The differences as lines for the user."""
        lines = [f"{one}, which {explanation(one.key)} explains" for one in self.described[:SHOWN]]
        if self.described[SHOWN:]:
            lines.append(f"and {len(self.described) - SHOWN} more keys that only describe the file")
        if self.implied:
            keys = ", ".join(one.key for one in self.implied[:SHOWN]) + (" …" if self.implied[SHOWN:] else "")
            lines.append(f"stated on one side only, and what the other's silence means: {keys}")
        return (*lines, *(f"allowed by --allow-keys: {one}" for one in self.allowed))


def check_metadata(plan: Plan, again: Checkpoint) -> None:
    """Check that the file has every key of the plan with its value, and no other key. Raises VerificationError."""
    expected = shard_metadata(plan.metadata, 0, len(plan.layouts), len(plan.steps), plan.set_digest)
    if plan.options.alignment != 32:
        expected.setdefault("general.alignment", u32(plan.options.alignment))
    odd = sorted(set(expected) ^ set(again.metadata))
    if odd:
        raise VerificationError("metadata key on one side only", path=again.path, found=odd[0])
    for key, value in expected.items():
        if (apart := difference(key, again.metadata[key], value)) is not None:
            raise VerificationError(
                f"metadata {apart.place}", path=again.path, found=apart.found, expected=apart.expected
            )


def compare_keys(
    expected: Mapping[str, Value], again: Checkpoint, sides: tuple[ModelGraph, ModelGraph] | None, allow: Sequence[str]
) -> KeyProof:
    """Compare the keys of a file that exists already with those that its source gives.

    Args:
        expected: The keys that the source gives.
        again: The file.
        sides: Source and output bound to their architecture, which says what a key's absence means; None without them.
        allow: Shell patterns of keys that may differ.

    Raises VerificationError naming every key whose difference nothing explains.
    """
    proof: dict[str, list[Difference]] = {"wrong": [], "described": [], "implied": [], "allowed": []}
    keys = [key for key in sorted({*expected, *again.metadata}) if not _is(key, LAYOUT)]
    for key in keys:
        if (apart := difference(key, again.metadata.get(key), expected.get(key))) is not None:
            proof[_judged(apart, expected, again.metadata, sides, allow)].append(apart)
    if wrong := proof.pop("wrong"):
        raise _unexplained(wrong, again.path)
    return KeyProof(len(keys), **{name: tuple(found) for name, found in proof.items()})


def _judged(
    apart: Difference,
    expected: Mapping[str, Value],
    found: Mapping[str, Value],
    sides: tuple[ModelGraph, ModelGraph] | None,
    allow: Sequence[str],
) -> str:
    key = apart.key
    if _is(key, allow):
        return "allowed"
    if _is(key, DESCRIPTIVE) and not (_is(key, TELLING) and key in found):
        return "described"
    declared = expected.get(key, found.get(key))
    alone = (key in expected) != (key in found)
    if alone and declared is not None and (_vocabulary_default(key, declared, expected) or _means_same(key, sides)):
        return "implied"
    return "wrong"


def _is(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _vocabulary_default(key: str, declared: Value, expected: Mapping[str, Value]) -> bool:
    """Return whether a runtime that does not find this key of the vocabulary assumes the same value."""
    model, pre = expected.get("tokenizer.ggml.model"), expected.get("tokenizer.ggml.pre")
    short = key.removeprefix("tokenizer.ggml.")
    if short == key or model is None:
        return False
    taken = dict(ABSENT.get(str(model.data), {}))
    if model.data == "gpt2":
        known = by_name().get(str(pre.data) if pre else "default")
        taken["add_bos_token"] = known is not None and known.add_bos
    return short in taken and declared.type is not ValueType.ARRAY and bool(taken[short] == declared.data)


def _means_same(key: str, sides: tuple[ModelGraph, ModelGraph] | None) -> bool:
    """Return whether the key states an hparam that has one value on both sides."""
    if sides is None:
        return False
    source, output = sides
    spec = source.architecture
    names = {param.key_of(spec.name): param.name for param in spec.hparams if param.key}
    name = names.get(key)
    return name is not None and same(source.sizes.get(name), output.sizes.get(name))


def _unexplained(wrong: Sequence[Difference], path: str) -> VerificationError:
    more = f" … and {len(wrong) - SHOWN} more" if wrong[SHOWN:] else ""
    if len(wrong) == 1:
        (one,) = wrong
        message, found, expected = f"metadata {one.place} is not what the source gives", one.found, one.expected
    else:
        shown = "; ".join(map(str, wrong[:SHOWN]))
        message, found, expected = f"{len(wrong)} keys are not what the source gives: {shown}{more}", None, None
    return VerificationError(
        message,
        path=path,
        found=found or ("absent" if len(wrong) == 1 else None),
        expected=expected,
        hint=f"{explanation(wrong[0].key)} would explain {wrong[0].key}; --allow-keys '{wrong[0].key}' lets it differ",
    )


def explanation(key: str) -> str:
    """Return the option that may have changed this key."""
    return next(option for pattern, option in EXPLAINED if fnmatchcase(key, pattern))


def difference(key: str, found: Value | None, expected: Value | None) -> Difference | None:
    """Return how two values of one key differ in type or in what a file holds of them; None where they do not."""
    if found is None or expected is None:
        return Difference(key, key, _shown(found), _shown(expected))
    if (found.type, found.items) != (expected.type, expected.items):
        kinds = (f"{_kind(found)} {_shown(found)}", f"{_kind(expected)} {_shown(expected)}")
        return Difference(key, key, *kinds)
    if found == expected:
        return None
    here, there = _items(found), _items(expected)
    if len(here) != len(there):
        return Difference(key, key, f"{len(here)} items", f"{len(there)} items")
    pairs = enumerate(zip(here, there, strict=True))
    at = next((i for i, (a, b) in pairs if a != b and not (a != a and b != b)), None)
    if at is None:
        return None
    many = found.type is ValueType.ARRAY
    return Difference(key, f"{key}[{at}]" if many else key, _brief(here[at]), _brief(there[at]))


def _items(value: Value) -> Sequence[Any]:
    """Return the data as a file holds them: float32 values come back rounded."""
    items = value.data if value.type is ValueType.ARRAY else (value.data,)
    single = ValueType.FLOAT32 in (value.type, value.items)
    return np.asarray(items, np.float32).tolist() if single else items


def _kind(value: Value) -> str:
    return value.type.name.lower() + (f" of {value.items.name.lower()}" if value.items is not None else "")


def _shown(value: Value | None) -> str | None:
    if value is None:
        return None
    return f"{len(value)} items" if value.type is ValueType.ARRAY else _brief(value.data)


def _brief(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
