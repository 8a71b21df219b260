"""Read an adapter: its pairs of matrices, each with the scale that its own program applies.

There are three containers: PEFT (adapter_config.json with the weights), ggla, and GGUF itself. Whatever PEFT has beyond
pairs for linear layers is refused by its name, never left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import (
    AmbiguousError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files.text import load_json
from ggferry.formats.reader import Kind, kind_of
from ggferry.support.records import dataclass

FLOATS = ("F32", "F16", "BF16", "F64")
TYPE, ALPHA, ALORA = "adapter.type", "adapter.lora.alpha", "adapter.alora.invocation_tokens"

_PAIR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
_FOREIGN: tuple[tuple[str, str], ...] = (
    ("lora_magnitude_vector", "DoRA: its magnitudes divide by norms of the base's weights"),
    ("lora_embedding_", "LoRA on an embedding"),
    (".bias", "trained biases"),
    ("lora_", "a kind of LoRA ggferry does not know"),
)
_WHOLE = "modules_to_save: a whole tensor that replaces the base's"
# PEFT's ways to begin training that change the base's own weights: the file alone is then no difference to the base.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_STARTS = ("gaussian", "eva", "orthogonal")
_SWITCHES = {
    "use_dora": "DoRA",
    "lora_bias": "lora_bias: biases beside the pairs",
    "modules_to_save": "modules_to_save: whole tensors that replace the base's",
    "layer_replication": "layer_replication: a base of other layers",
    "target_parameters": "target_parameters: LoRA on bare parameters",
    "trainable_token_indices": "trainable_token_indices: rows of the embedding",
}
_KNOWN_USES = ("use_rslora", "use_dora")
SMALLEST, LARGEST = 2.0**-126, 3.4e38  # normal float32, as which GGUF states alpha
MAX_REGEXES, MAX_MATCHED = 64, 256
_LITERAL = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_REGEX = re.compile(r"\^?(?:[\w.-]|\\[.d]|\\d\+|\[[\w-]+\]|\|)*(?:\.\*|\.\+)?(?:[\w.-]|\\[.d]|\\d\+|\[[\w-]+\])*\$?")


@dataclass(frozen=True, slots=True)
class Low:
    """The two matrices of one module; the change to its weight is `scale` · B·A.

    Attributes:
        a: A, `(r, columns)`.
        b: B, `(rows, r)`.
        scale: What the source's program multiplies the product by.
        alpha: What a GGUF adapter of this module alone would state: `scale` · r.
        origin: Where the scale came from.
    """

    a: TensorRef
    b: TensorRef
    scale: float
    alpha: float
    origin: str

    @property
    def rank(self) -> int:
        return self.b.columns


@dataclass(frozen=True, slots=True)
class Found:
    """An adapter as it was found.

    Attributes:
        dialect: How names of weights are spelled: 'hf', 'ggml' or 'gguf'.
        pairs: The matrices, by the name of the weight that they change.
        architecture: GGUF's name of the base's architecture, where it is stated.
        base: What the adapter states as its base model.
        base_class: The class of the base model, where it is stated.
        invocation: Tokens from which on an activated LoRA applies.
        notes: What the user should know.
    """

    dialect: str
    pairs: Mapping[str, Low]
    architecture: str | None = None
    base: str | None = None
    base_class: str | None = None
    invocation: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def is_adapter(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint changes a model instead of being one."""
    kind = kind_of(checkpoint.container)
    if kind is Kind.GGUF:
        declared = checkpoint.metadata.get("general.type")
        return isinstance(declared, Value) and declared.data == "adapter"
    if kind is Kind.TRAINING:
        return "peft_type" in checkpoint.metadata or any(
            ".lora_A." in name and ".parametrizations." not in name for name in checkpoint.tensors
        )  # torch's parametrizations lie within the model they adapt (jina-embeddings-v3); so do Granite Switch's
    return kind is Kind.ADAPTER


def read_adapter(checkpoint: Checkpoint) -> Found:
    """Read the pairs of an adapter.

    Raises UnsupportedError for what GGUF cannot express, and CorruptError's subclasses for damaged files.
    """
    return {"gguf": _read_gguf, "ggla": _read_ggla}.get(checkpoint.container, _read_peft)(checkpoint)


def low_of(checkpoint: Checkpoint, name: str, a: TensorRef, b: TensorRef, scale: float, alpha: float, why: str) -> Low:
    for ref in (a, b):
        if ref.type.name not in FLOATS and checkpoint.container != "gguf":
            raise UnsupportedTypeError(
                f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected=", ".join(FLOATS)
            )
        if len(ref.shape) != len(a.shape) or not 2 <= len(ref.shape) <= 3 or 0 in ref.shape:
            raise ShapeError(f"{ref.name!r} is not a matrix", path=checkpoint.path, found=ref.shape)
    if a.shape[-2] != b.shape[-1] or a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(
            f"the two matrices of {name!r} do not multiply",
            path=checkpoint.path,
            found=f"B {list(b.shape)}, A {list(a.shape)}",
            expected="one rank",
        )
    if not SMALLEST <= abs(alpha) <= LARGEST:
        raise OutOfRangeError(
            f"alpha of {name!r}",
            path=checkpoint.path,
            found=alpha,
            expected="a float32 that is not zero",
            hint="GGUF's alpha 0 means a scale of 1",
        )
    return Low(a, b, scale, alpha, why)


def _check_pairs(checkpoint: Checkpoint, pairs: Mapping[str, Mapping[str, TensorRef]]) -> None:
    if not pairs:
        raise MissingError("adapter has no pair of matrices", path=checkpoint.path)
    for name, sides in pairs.items():
        for side in "AB":
            if side not in sides:
                raise MissingError(f"lora_{side} of {name!r} missing", path=checkpoint.path)


# --- ggla and GGUF ---------------------------------------------------------------------------------------------


def _read_ggla(checkpoint: Checkpoint) -> Found:
    r, alpha = int(checkpoint.header["r"]), float(checkpoint.header["alpha"])
    pairs, why = {}, f"alpha {alpha:g} / r {r} of the header"
    for name, a in checkpoint.tensors.items():
        if name.endswith(".loraA"):
            stem = name.removesuffix(".loraA")
            pairs[stem] = low_of(checkpoint, stem, a, checkpoint.tensors[f"{stem}.loraB"], alpha / r, alpha, why)
    named = any(name.startswith("blk.") for name in pairs)
    notes = ("names of GGUF and no architecture: taken for llama, which --base MODEL checks",) if named else ()
    return Found("gguf" if named else "ggml", pairs, "llama", notes=notes)


def _read_gguf(checkpoint: Checkpoint) -> Found:
    kind, alpha = (_declared(checkpoint, key) for key in (TYPE, ALPHA))
    if kind != "lora":
        raise UnsupportedError("adapter.type", path=checkpoint.path, found=kind, expected="lora")
    if not isinstance(alpha, float):
        raise MissingError(f"{ALPHA} is absent or not a float", path=checkpoint.path, found=alpha)
    halves: dict[str, dict[str, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        stem, dot, side = name.rpartition(".lora_")
        if not dot or side not in ("a", "b"):
            raise UnsupportedError("adapter tensor is not part of a pair", path=checkpoint.path, found=name)
        halves.setdefault(stem, {})[side.upper()] = ref
    _check_pairs(checkpoint, halves)
    pairs = {
        stem: low_of(checkpoint, stem, half["A"], half["B"], alpha / half["B"].columns, alpha, ALPHA)
        for stem, half in halves.items()
    }
    architecture = _declared(checkpoint, "general.architecture")
    tokens = _declared(checkpoint, ALORA) or ()
    return Found("gguf", pairs, architecture if isinstance(architecture, str) else None, invocation=tuple(tokens))


def _declared(checkpoint: Checkpoint, key: str) -> Any:
    value = checkpoint.metadata.get(key)
    return value.data if isinstance(value, Value) else None


# --- PEFT ------------------------------------------------------------------------------------------------------


def _read_peft(checkpoint: Checkpoint) -> Found:
    config = configuration(checkpoint)
    refuse_kinds(checkpoint, config)
    halves: dict[str, dict[str, TensorRef]] = {}
    names: dict[str, None] = {}
    for name, ref in checkpoint.tensors.items():
        match = _PAIR.fullmatch(name)
        if match is None:
            raise UnsupportedError(
                next((words for part, words in _FOREIGN if part in name), _WHOLE), path=checkpoint.path, found=name
            )
        names[match["adapter"] or ""] = None
        sides = halves.setdefault(match["module"], {})
        sides[match["side"]] = ref
    if len(names) > 1:
        raise AmbiguousError("several adapters in one file", path=checkpoint.path, found=", ".join(names))
    _check_pairs(checkpoint, halves)
    scaling = Scaling(checkpoint, config)
    pairs = {
        f"{module}.weight": low_of(checkpoint, module, sides["A"], sides["B"], *scaling(module, sides["B"]))
        for module, sides in halves.items()
    }
    mapping = config.get("auto_mapping")
    declared = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    base = config.get("base_model_name_or_path")
    return Found(
        "hf",
        pairs,
        None,
        base if isinstance(base, str) and base else None,
        declared if isinstance(declared, str) else None,
        _tokens(checkpoint, config),
    )


def configuration(checkpoint: Checkpoint) -> Mapping[str, Any]:
    if "peft_type" in checkpoint.metadata:
        return checkpoint.metadata
    beside = checkpoint.sidecars.get("adapter_config")
    if beside is None:
        raise MissingError(
            "adapter_config.json is missing: nothing says at which scale it applies", path=checkpoint.path
        )
    found: Mapping[str, Any] = load_json(beside)
    return found


def refuse_kinds(checkpoint: Checkpoint, config: Mapping[str, Any], carried: Collection[str] = ()) -> None:
    """Raise UnsupportedError for every setting by which an adapter is more than pairs for linear layers.

    `carried`: settings that are read nevertheless.
    """

    def refuse(words: str, found: object = None) -> None:
        raise UnsupportedError(f"an adapter with {words}", path=checkpoint.path, found=found)

    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedError("peft_type", path=checkpoint.path, found=kind, expected="LORA")
    for key, words in _SWITCHES.items():
        if config.get(key) and key not in carried:
            refuse(words, config[key] if config[key] is not True else None)
    if config.get("bias", "none") != "none" and "bias" not in carried:
        refuse("bias: trained biases of the base", config["bias"])
    other = next((key for key in config if key.startswith("use_") and key not in _KNOWN_USES and config[key]), None)
    if other:
        refuse(f"{other}, which ggferry does not know", config[other])
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in _STARTS:
        changes = start.lower().startswith(_CHANGES_BASE)
        refuse(
            "init_lora_weights that changed the base's own weights (save it converted to plain LoRA)"
            if changes
            else "init_lora_weights that ggferry does not know",
            start,
        )


class Scaling:
    """PEFT's scale of each module: alpha / r, or alpha / √r (rsLoRA); patterns may state r and alpha of a module."""

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        self.path = checkpoint.path
        self.root = config.get("use_rslora", False)
        if not isinstance(self.root, bool):
            raise InconsistentError("use_rslora", path=self.path, found=self.root, expected="true or false")
        self.alpha = self._number("lora_alpha", config.get("lora_alpha", 8))  # PEFT's default
        self.alphas = self._patterns("alpha_pattern", config)
        self.ranks = self._patterns("rank_pattern", config)
        self.rank = config.get("r")

    def __call__(self, module: str, b: TensorRef) -> tuple[float, float, str]:
        """Return (scale, scale · r, origin) of a module.

        Raises InconsistentError for a rank that its matrices do not have.
        """
        rank = max(1, b.shape[-1])
        declared = self.ranks(module)
        declared = self.rank if declared is None else declared
        if declared is not None and declared != rank:
            raise InconsistentError(
                f"rank of {module!r}", path=self.path, found=f"{rank} (lora_B)", expected=f"{declared} (adapter_config)"
            )
        own = self.alphas(module)
        alpha, where = (self.alpha, "lora_alpha") if own is None else (own, "alpha_pattern")
        if self.root:
            return alpha / math.sqrt(rank), alpha * math.sqrt(rank), f"{where} {alpha:g} / √{rank} (rsLoRA)"
        return alpha / rank, alpha, f"{where} {alpha:g} / {rank}"

    def declared(self, module: str) -> tuple[int, float]:
        """Return the rank that the configuration states, and the scale. Raises InconsistentError without a rank."""
        rank = self.rank
        if type(rank) is not int or rank < 1:
            raise InconsistentError(f"rank of {module!r}", path=self.path, found=rank, expected="a whole number")
        return rank, self.alpha / (math.sqrt(rank) if self.root else rank)

    def _number(self, what: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_float(value)):
            raise InconsistentError(what, path=self.path, found=value, expected="a number")
        return float(value)

    def _patterns(self, key: str, config: Mapping[str, Any]) -> Callable[[str], float | None]:
        found = config.get(key) or {}
        if not isinstance(found, dict):
            raise InconsistentError(key, path=self.path, found=found, expected="an object")
        return _Patterns(self.path, key, {name: self._number(f"{key} of {name!r}", x) for name, x in found.items()})


class _Patterns:
    """PEFT's patterns: a key is the end of a name, or a regular expression that matches all of it; the first counts.

    An untrusted regular expression can take forever. One with at most two open repetitions, on a name of bounded
    length, cannot; any other is refused.
    """

    def __init__(self, path: str, what: str, found: Mapping[str, float]) -> None:
        self.path = path
        self.values = list(found.values())
        self.literal = {key: i for i, key in enumerate(found) if _LITERAL.fullmatch(key)}
        others = [(i, key) for i, key in enumerate(found) if key not in self.literal]
        for _, key in others:
            open_ended = key.count("*") + key.count("+")
            if len(key) > 256 or len(others) > MAX_REGEXES or open_ended > 2 or not _REGEX.fullmatch(key):
                raise UnsupportedError(f"{what}: a key ggferry does not evaluate", path=path, found=key)
        # peft.utils.other.get_pattern_key
        self.regexes = [(i, re.compile(rf"(.*\.)?({key})$")) for i, key in others]

    def __call__(self, module: str) -> float | None:
        if self.regexes and len(module) > MAX_MATCHED:
            raise OutOfRangeError("length of a module's name", path=self.path, found=module, expected=MAX_MATCHED)
        parts = module.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        hits = [self.literal[end] for end in ends if end in self.literal]
        hits += [i for i, regex in self.regexes if regex.match(module)]
        return self.values[min(hits)] if hits else None


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _tokens(checkpoint: Checkpoint, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens from which on an activated LoRA (aLoRA) applies."""
    found = config.get("alora_invocation_tokens") or ()
    if not isinstance(found, list | tuple) or not all(type(token) is int and 0 <= token < 2**32 for token in found):
        raise InconsistentError("alora_invocation_tokens", path=checkpoint.path, found=found, expected="token ids")
    return tuple(found)


def invocation_value(tokens: tuple[int, ...]) -> Value:
    """Return `adapter.alora.invocation_tokens` as llama.cpp reads it: an array of u32."""
    return Value(ValueType.ARRAY, tokens, ValueType.UINT32)
