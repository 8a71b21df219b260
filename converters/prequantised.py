"""Checkpoints whose weights are quantised already: recognised by their configuration, shown as plain matrices.

Carried: FP8 with scales for a tensor, a row or a block (DeepSeek's `weight_scale_inv`, fbgemm, ModelOpt), GPTQ of 2, 4
and 8 bits in both versions of its format, compressed-tensors (float, integer, packed integer). Everything else is
refused by name before any weight is read: AWQ, bitsandbytes, HQQ, NVFP4, …

Sources: the `quantization_config` of transformers (`utils/quantization_config.py`, `integrations/finegrained_fp8.py`),
GPTQModel's and AutoGPTQ's `quantize_config.json`, compressed-tensors `config/format.py`, `compressors/`,
`quantization/lifecycle/forward.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ggferry.converters.dequantise import Dequantised, Gptq, Grid, Rows, Scaled
from ggferry.formats.checkpoint import Checkpoint, Derivation, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, MissingError, OutOfRangeError, ShapeError, UnsupportedError
from ggferry.formats.folder import load_json
from ggferry.quant.codec import block_type
from ggferry.quant.codecs.packed import WORD_BITS

Config = Mapping[str, Any]
PLAIN = frozenset({"F32", "F16", "BF16", "F64"})
FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
NATURAL = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
MARKS = (".qweight", ".weight_packed", ".weight_scale_inv", ".weight_scale")
RUNTIME = (
    ".input_scale", ".input_zero_point", ".input_global_scale", ".activation_scale", ".input_scale_ub", ".output_scale",
    ".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale", ".k_zero_point", ".v_zero_point",
)  # fmt: skip
"""Ends of names of numbers for quantising activations and caches while a model runs; its weights do not need them."""
_DEQUANTISE = "ask for the unquantised checkpoint, or dequantise it with the library that wrote it"


@dataclass(slots=True)
class _Found:
    """What a scheme made of a checkpoint: matrices by the tensor whose place they take, and tensors used up."""

    scheme: str
    matrices: dict[str, tuple[str, tuple[int, int], Rows]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)


def dequantised(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with every quantised matrix as one float32 tensor that is computed when it is read; as it is where
    nothing is quantised. The files it was read from stay first among its files.

    Raises UnsupportedError naming a scheme that is not carried, MissingError, ShapeError or InconsistentError where the
    tensors contradict it.
    """
    if checkpoint.container not in ("safetensors", "pytorch"):
        return checkpoint
    packed = [ref for ref in checkpoint.tensors.values() if ref.type.name not in PLAIN]
    config = configuration(checkpoint)
    if config is None:
        _refuse_unexplained(checkpoint, packed)
        return checkpoint
    if not packed:
        return checkpoint  # an old configuration beside weights that somebody has dequantised
    method = method_of(config)
    if method not in SCHEMES:
        raise UnsupportedError(
            "weights are quantised by a scheme that ggferry does not carry", path=checkpoint.path, found=method,
            expected=", ".join(sorted(SCHEMES)), hint=_DEQUANTISE,
        )  # fmt: skip
    found = SCHEMES[method](checkpoint, config)
    return _shown(checkpoint, found) if found.matrices else checkpoint


def configuration(checkpoint: Checkpoint) -> Config | None:
    """What the checkpoint says of its quantisation: `quantization_config` (or `compression_config`) of config.json, or
    the file that AutoGPTQ, AutoAWQ and ModelOpt put beside it."""
    places = [checkpoint.metadata]
    places += [inner for key in ("text_config", "llm_config") if isinstance(inner := places[0].get(key), dict)]
    for place in places:
        for key in ("quantization_config", "compression_config"):
            if isinstance(place.get(key), dict):
                return dict(place[key])
    if "quantize_config" in checkpoint.sidecars:
        beside = load_json(checkpoint.sidecars["quantize_config"])
        if isinstance(beside, dict):
            inner = beside.get("quantization")
            return {"quant_method": "modelopt", **inner} if isinstance(inner, dict) else beside
    return None


_SIGNS = {
    "w_bit": "awq",
    "load_in_8bit": "bitsandbytes",
    "load_in_4bit": "bitsandbytes",
    "config_groups": "compressed-tensors",
}


def method_of(config: Config) -> str:
    """The scheme's name, also where an old configuration does not give it."""
    stated = config.get("quant_method")
    if isinstance(stated, str):
        return stated.lower()
    for key, method in _SIGNS.items():
        if key in config:
            return method
    return "gptq" if "bits" in config and "group_size" in config else "unnamed"


def _refuse_unexplained(checkpoint: Checkpoint, packed: list[TensorRef]) -> None:
    odd = next((name for name in checkpoint.tensors if name.endswith(MARKS)), None)
    if packed and odd is not None:
        raise UnsupportedError(
            "weights are quantised and no configuration says how", path=checkpoint.path, found=odd,
            hint="config.json has a quantization_config, or quantize_config.json stands beside it",
        )  # fmt: skip


def _shown(checkpoint: Checkpoint, found: _Found) -> Checkpoint:
    source = Dequantised(checkpoint.path)
    natural = natural_type(checkpoint)
    tensors: dict[str, TensorRef] = {}
    dropped = list(found.dropped)
    for name, ref in checkpoint.tensors.items():
        if name in found.matrices:
            wanted, shape, rows = found.matrices[name]
            if wanted != name and wanted in checkpoint.tensors:
                raise InconsistentError(f"{wanted!r} is there plain and quantised", path=checkpoint.path)
            derived = Derivation(found.scheme, block_type(natural), ref.type.name not in FP8)
            tensors[wanted] = source.add(wanted, shape, rows, len(checkpoint.files), derived)
        elif name.endswith(RUNTIME):
            dropped.append(Dropped(ref, "a scale for activations or caches, which a GGUF model does not quantise so"))
        elif name not in found.used:
            tensors[name] = ref
    note = (
        f"{len(found.matrices)} tensors were quantised already ({found.scheme}) and are dequantised; "
        f"'keep' makes {natural} of them, as config.json names it, and --outtype f32 loses nothing"
    )
    return replace(
        checkpoint, files=(*checkpoint.files, source), tensors=tensors, notes=(*checkpoint.notes, note),
        dropped=(*checkpoint.dropped, *(drop for drop in dropped if drop.ref.name not in tensors)),
    )  # fmt: skip


def natural_type(checkpoint: Checkpoint) -> str:
    """The type config.json says the model is of; float32, which is exact, where it says nothing."""
    config = checkpoint.metadata
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, dict) else {}):
        stated = place.get("dtype") or place.get("torch_dtype")
        if isinstance(stated, str):
            return NATURAL.get(stated.removeprefix("torch."), "F32")
    return "F32"


# --- FP8 ---------------------------------------------------------------------------------------------------


def _fp8(checkpoint: Checkpoint, config: Config) -> _Found:
    """`fp8` (DeepSeek, Mistral), `fbgemm_fp8`, ModelOpt's FP8: weight × scale."""
    algorithm = config.get("quant_algo", "FP8")
    if method_of(config) == "modelopt" and algorithm != "FP8":
        raise UnsupportedError(
            "a scheme of ModelOpt", path=checkpoint.path, found=algorithm, expected="FP8", hint=_DEQUANTISE
        )
    tall, wide = _block(checkpoint, config.get("weight_block_size"))
    found = _Found("FP8")
    for name, ref in checkpoint.tensors.items():
        if ref.type.name not in FP8:
            continue
        scale = checkpoint.tensors.get(f"{name}_scale_inv") or checkpoint.tensors.get(f"{name}_scale")
        if scale is None:
            raise MissingError(f"{name!r} is FP8 and has no scale", path=checkpoint.path, expected=f"{name}_scale_inv")
        _plain(checkpoint, found, ref, _grid(checkpoint, ref, scale, ref.shape, tall, wide))
    return found


def _block(checkpoint: Checkpoint, stated: Any) -> tuple[int, int]:
    if stated is None:
        return 0, 0
    if not (isinstance(stated, list) and len(stated) == 2 and all(type(n) is int and n > 0 for n in stated)):
        raise InconsistentError("block size of scales", path=checkpoint.path, found=stated, expected="[rows, columns]")
    return stated[0], stated[1]


def _plain(checkpoint: Checkpoint, found: _Found, ref: TensorRef, scale: Grid, zero: Grid | None = None,
           order: TensorRef | None = None) -> None:  # fmt: skip
    rows, columns = _matrix(checkpoint, ref)
    found.matrices[ref.name] = ref.name, (rows, columns), Scaled(checkpoint, ref, columns, scale, zero, 0, order)
    found.used |= {grid.ref.name for grid in (scale, zero) if grid} | ({order.name} if order else set())


def _matrix(checkpoint: Checkpoint, ref: TensorRef) -> tuple[int, int]:
    if len(ref.shape) != 2 or not ref.elements:
        raise UnsupportedError(
            f"quantised tensor {ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="a matrix"
        )
    return ref.shape[0], ref.shape[1]


def _grid(
    checkpoint: Checkpoint, weight: TensorRef, ref: TensorRef, shape: tuple[int, ...], tall: int, wide: int,
    bits: int = 0,
) -> Grid:  # fmt: skip
    """What patch of a matrix of `shape` each number of `ref` stands for. `tall`, `wide`: as the configuration has it,
    0 where it has none. `bits`: those of numbers packed down the rows. Raises ShapeError when it cannot be so."""
    _matrix(checkpoint, weight)
    rows, columns = shape
    if ref.elements == 1 and not bits:
        return Grid(ref)
    high, across = (ref.shape[0], ref.columns if len(ref.shape) > 1 else 1) if ref.shape else (1, 1)
    if across == 1 and high == rows and not bits:
        return Grid(ref, 1)
    down = -(-rows // (tall or 1))
    wanted = -(-columns // wide) if wide and across != 1 else across
    known = 0 < len(ref.shape) <= 2 and high == (-(-down // (WORD_BITS // bits)) if bits else down)
    if not known or across != wanted or not across or (not wide and columns % across):
        raise ShapeError(
            f"{ref.name!r} against {weight.name!r} of {rows} × {columns}", path=checkpoint.path, found=list(ref.shape),
            expected=[down, -(-columns // wide) if wide else 1],
        )  # fmt: skip
    return Grid(ref, tall or 1, wide or columns // across, bits)


# --- GPTQ --------------------------------------------------------------------------------------------------


def _gptq(checkpoint: Checkpoint, config: Config) -> _Found:
    version = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedError(
            "GPTQ weights in a kernel's own order", path=checkpoint.path, found=version, expected="gptq, gptq_v2",
            hint=_DEQUANTISE,
        )  # fmt: skip
    found, widths = _Found("GPTQ"), set()
    for name, words in checkpoint.tensors.items():
        if not name.endswith(".qweight"):
            continue
        base = name.removesuffix(".qweight")
        zeros, scales = (_piece(checkpoint, f"{base}.{end}", name) for end in ("qzeros", "scales"))
        order = checkpoint.tensors.get(f"{base}.g_idx")
        made = _gptq_matrix(checkpoint, config, words, zeros, scales, order, version == "gptq")
        found.matrices[name] = f"{base}.weight", (words.shape[1], made.words.shape[0] * WORD_BITS // made.bits), made
        found.used |= {f"{base}.{end}" for end in ("qzeros", "scales", "g_idx")}
        widths.add(made.bits)
    found.scheme = f"GPTQ of {' and '.join(map(str, sorted(widths)))} bits"
    _drop_empty_biases(checkpoint, found)
    return found


def _piece(checkpoint: Checkpoint, name: str, beside: str) -> TensorRef:
    ref = checkpoint.tensors.get(name)
    if ref is None:
        raise MissingError(f"tensor {name!r} missing beside {beside!r}", path=checkpoint.path)
    return ref


def _gptq_matrix(
    checkpoint: Checkpoint, config: Config, words: TensorRef, zeros: TensorRef, scales: TensorRef,
    order: TensorRef | None, first_version: bool,
) -> Gptq:  # fmt: skip
    for ref in (words, zeros, scales):
        _matrix(checkpoint, ref)
        if len(ref.spans) != 1 or (ref is not scales and ref.type.name not in ("I32", "U32")):
            raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    bits, rows = config.get("bits"), words.shape[1]
    if order is not None and order.elements:  # with per-module settings the shapes say it, not the configuration
        stated = config.get("bits")
        bits, rest = divmod(words.shape[0] * WORD_BITS, order.elements)
        if rest or (bits != stated and not config.get("dynamic")):
            raise InconsistentError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected=stated)
    if type(bits) is not int or bits not in (2, 4, 8):
        raise UnsupportedError(f"bits of {words.name!r}", path=checkpoint.path, found=bits, expected="2, 4 or 8")
    columns = words.shape[0] * WORD_BITS // bits
    size = config.get("group_size", -1)
    if type(size) is not int or size == 0 or size < -1:
        raise OutOfRangeError("group_size", path=checkpoint.path, found=size, expected="-1 or more than 0")
    group = columns if size == -1 else size
    groups, needed = scales.shape[0], -(-columns // group)
    if order is None and groups != needed:
        raise ShapeError(f"groups of {scales.name!r}", path=checkpoint.path, found=groups, expected=needed)
    for ref, wanted in ((scales, (groups, rows)), (zeros, (groups, -(-rows * bits // WORD_BITS)))):
        if ref.shape != wanted:
            beside = f"{ref.name!r} beside {words.name!r}"
            raise ShapeError(beside, path=checkpoint.path, found=list(ref.shape), expected=list(wanted))
    return Gptq(checkpoint, words, zeros, scales, order, bits, group, first_version)


def _drop_empty_biases(checkpoint: Checkpoint, found: _Found) -> None:
    """Packers gave layers a bias that have none. Where all of a model are zeros, they are such."""
    beside = [name.removesuffix("qweight") + "bias" for name in found.matrices]
    biases = [checkpoint.tensors[name] for name in beside if name in checkpoint.tensors]
    if len(biases) != len(beside) or any(_holds_values(checkpoint, ref) for ref in biases):
        return
    found.used |= {ref.name for ref in biases}
    why = "zeros, like every bias beside a quantised weight of this model: the packer added them"
    found.dropped += [Dropped(ref, why) for ref in biases]


def _holds_values(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    from ggferry.converters.values import values_of

    return any(values_of(checkpoint, ref, row, row + 1).any() for row in range(ref.rows))


# --- compressed-tensors ------------------------------------------------------------------------------------

_COMPRESSED = frozenset({"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"})


def _compressed(checkpoint: Checkpoint, config: Config) -> _Found:
    groups = list(_weight_settings(checkpoint, config))
    found = _Found(f"compressed-tensors, {config.get('format')}")
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight_packed"):
            _packed(checkpoint, groups, found, ref)
        elif name.endswith(".weight") and ref.type.name in FP8 | {"I8"}:
            scale = _piece(checkpoint, f"{name}_scale", name)
            settings = _settings(checkpoint, groups, name, 8)
            _plain(checkpoint, found, ref, *_grids(checkpoint, settings, ref, scale, ref.shape, 0))
        if name in found.matrices:
            base = name.removesuffix("_packed")
            found.used |= {f"{base}_{end}" for end in ("shape", "zero_point", "g_idx")}
    return found


def _weight_settings(checkpoint: Checkpoint, config: Config) -> Iterator[Config]:
    """The `weights` of every group. Raises UnsupportedError for what changes more than the weights' form."""
    sparsity = config.get("sparsity_config")
    sparse = sparsity.get("format") if isinstance(sparsity, dict) else None
    odd = {
        "format": config.get("format") if config.get("format") not in _COMPRESSED else None,
        "sparsity": None if sparse == "dense" else sparse,
        "transform_config": config.get("transform_config") or None,
    }
    for key, value in odd.items():
        if value:
            raise UnsupportedError(
                f"{key} of compressed-tensors", path=checkpoint.path, found=value,
                expected=", ".join(sorted(_COMPRESSED)) if key == "format" else "none", hint=_DEQUANTISE,
            )  # fmt: skip
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield weights


def _settings(checkpoint: Checkpoint, groups: list[Config], name: str, *bits: int) -> Config:
    """The settings with one of these widths. Raises UnsupportedError where there is none, or several unlike."""
    fitting = [group for group in groups if group.get("num_bits") in bits]
    keys = ("num_bits", "strategy", "group_size", "block_structure")
    if not fitting or any(group.get(key) != fitting[0].get(key) for group in fitting for key in keys):
        raise UnsupportedError(
            f"config_groups do not say how {name!r} is quantised", path=checkpoint.path,
            found=[group.get("num_bits") for group in groups], expected=f"one of {list(bits)} bits",
        )  # fmt: skip
    return fitting[0]


def _grids(
    checkpoint: Checkpoint, settings: Config, weight: TensorRef, scale: TensorRef, shape: tuple[int, ...], bits: int
) -> tuple[Grid, Grid | None, TensorRef | None]:
    """Scale, zero point and column order of a weight named `….weight` or `….weight_packed`."""
    base = weight.name.removesuffix("_packed")
    tall, wide = _block(checkpoint, settings.get("block_structure")) if settings.get("strategy") == "block" else (0, 0)
    size = settings.get("group_size")
    if settings.get("strategy") == "group" and type(size) is int and size > 0:
        wide = size
    order = checkpoint.tensors.get(f"{base}_g_idx")
    if order is not None and order.elements != shape[1]:
        raise ShapeError(f"{order.name!r}", path=checkpoint.path, found=list(order.shape), expected=[shape[1]])
    zero = checkpoint.tensors.get(f"{base}_zero_point")
    scales = _grid(checkpoint, weight, scale, shape, tall, wide)
    if zero is None:
        return scales, None, order
    packed = bits if bits and zero.type.name == "I32" else 0
    return scales, _grid(checkpoint, weight, zero, shape, tall, wide, packed), order


def _packed(checkpoint: Checkpoint, groups: list[Config], found: _Found, ref: TensorRef) -> None:
    base = ref.name.removesuffix("_packed")
    rows, words = _matrix(checkpoint, ref)
    if ref.type.name not in ("I32", "U32"):
        raise UnsupportedError(f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected="I32")
    columns = _stated_columns(checkpoint, _piece(checkpoint, f"{base}_shape", ref.name), rows)
    fitting = [bits for bits in (4, 8) if -(-columns // (WORD_BITS // bits)) == words]
    if not fitting:
        raise UnsupportedError(
            f"{ref.name!r} holds {columns} columns in {words} words", path=checkpoint.path, expected="4 or 8 bits each"
        )
    settings = _settings(checkpoint, groups, ref.name, *fitting)
    bits, shape = settings["num_bits"], (rows, columns)
    scale = _piece(checkpoint, f"{base}_scale", ref.name)
    scales, zero, order = _grids(checkpoint, settings, ref, scale, shape, bits)
    found.matrices[ref.name] = base, shape, Scaled(checkpoint, ref, columns, scales, zero, bits, order)
    found.used.add(scale.name)


def _stated_columns(checkpoint: Checkpoint, ref: TensorRef, rows: int) -> int:
    """The shape that `weight_shape` keeps as data: two integers, read because the packed words are padded."""
    from ggferry.converters.dequantise import indices

    if ref.elements != 2 or ref.type.name not in ("I64", "I32"):
        raise ShapeError(f"{ref.name!r}", path=checkpoint.path, found=list(ref.shape), expected="two integers")
    stated = indices(checkpoint, ref).tolist()
    if stated[0] != rows or stated[1] <= 0:
        raise InconsistentError(f"{ref.name!r}", path=checkpoint.path, found=stated, expected=f"[{rows}, …]")
    return int(stated[1])


SCHEMES: dict[str, Callable[[Checkpoint, Config], _Found]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _fp8,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
}
