"""Recognize checkpoints whose weights are quantized already by their configuration, and present them as plain matrices.

`schemes/` holds the schemes that are supported; every other (EXL3, VPTQ, …) is refused by name before any weight is
read. Source of the configurations: transformers' `utils/quantization_config.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ggferry.converters.prequantized import sinq_settings
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.prequantized.exact_blocks import exact_types
from ggferry.converters.prequantized.own_scales import with_own_scales
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Scheme,
    transforms_activations,
)
from ggferry.formats.checkpoint import Checkpoint, Derivation, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, UnsupportedError
from ggferry.formats.json_files.text import load_json
from ggferry.formats.reader import Kind, kind_of
from ggferry.quant.codec import block_type
from ggferry.support.registry import scan

PLAIN = frozenset({"F32", "F16", "BF16", "F64"})
NATURAL = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
SINQ = "sinq"
MARKS = (".qweight", ".weight_packed", ".weight_scale_inv", ".weight_scale")
RUNTIME = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".activation_scale",
    ".qscale_act",
    ".input_scale_ub",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".prob_scale",
    ".kv_scale",
    ".k_zero_point",
    ".v_zero_point",
)
"""Ends of names of numbers that quantize activations and caches while a model runs; its weights do not need them."""


def dequantized(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with every quantized matrix as one tensor that is computed when it is read.

    Such a tensor is float32, or blocks of a GGUF type that holds the same values. A checkpoint in which nothing is
    quantized is returned as it is. The files it was read from stay first among its files.

    Raises:
        UnsupportedError: The scheme, which is named, is not supported.
        MissingError, ShapeError, InconsistentError: The tensors contradict the scheme.
    """
    if kind_of(checkpoint.container) is Kind.GGUF:
        return with_own_scales(checkpoint)
    if kind_of(checkpoint.container) is not Kind.TRAINING:
        return checkpoint
    packed = [ref for ref in checkpoint.tensors.values() if ref.type.name not in PLAIN]
    config = configuration(checkpoint)
    if config is None:
        _refuse_unexplained(checkpoint, packed)
        return checkpoint
    method = method_of(config, checkpoint.tensors)
    if not packed and not (method == "bitnet" and config.get("quantization_mode") == "online"):
        _refuse_what_running_adds(checkpoint, config)
        return checkpoint  # an old configuration of weights that somebody has dequantized
    schemes = {name: scheme for scheme in _schemes() for name in scheme.methods}
    if method not in schemes:
        raise UnsupportedError(
            f"weights are quantized by a scheme that is not read: {WHY.get(method, UNWRITTEN)}",
            path=checkpoint.path,
            found=method,
            expected=", ".join(sorted(schemes)),
            hint=DEQUANTIZE,
        )
    found = schemes[method].find(checkpoint, config)
    return _shown(checkpoint, found) if found.matrices else checkpoint


def _refuse_what_running_adds(checkpoint: Checkpoint, config: Config) -> None:
    """Raise UnsupportedError where plain weights are not what the model computes with."""
    if transforms_activations(config.get("transform_config")):
        raise UnsupportedError(
            "activations are transformed while the model runs (transform_config)",
            path=checkpoint.path,
            expected="transforms of weights alone, which are in them",
            hint=DEQUANTIZE,
        )


def _schemes() -> tuple[Scheme, ...]:
    return scan("ggferry.converters.prequantized.schemes", "SCHEME")


def configuration(checkpoint: Checkpoint) -> Config | None:
    """Return what the checkpoint states about its quantization, or None.

    That is `quantization_config` (or `compression_config`, or MLX's `quantization`) of config.json, or the sidecar file
    that AutoGPTQ, AutoAWQ and ModelOpt write; where there is neither, the name of the scheme whose tensors are there.
    """
    places = [checkpoint.metadata]
    parts = ("text_config", "llm_config", "language_config", "thinker_config")
    places += [inner for key in parts if isinstance(inner := places[0].get(key), dict)]
    for place in places:
        for key in ("quantization_config", "compression_config", "quantization"):
            found = place.get(key)
            if isinstance(found, dict) and (key != "quantization" or {"bits", "group_size"} <= found.keys()):
                return _of_modelopt(found) if found.get("quant_method") != SINQ else _of_sinq(checkpoint, found)
    if "quantize_config" in checkpoint.sidecars:
        beside = load_json(checkpoint.sidecars["quantize_config"])
        if isinstance(beside, dict):
            return _of_modelopt(beside)
    if places[0].get("architectures") == ["BitnetForCausalLM"] and places[0].get("weight_bits", 1) == 1:
        return ONLINE
    ends = tuple(_BY_TENSORS)  # one test a name: a checkpoint may have half a million
    marked = [name for name in checkpoint.tensors if name.endswith(ends)]
    found = {method for name in marked for end, method in _BY_TENSORS.items() if name.endswith(end)}
    if SINQ in found:
        return _of_sinq(checkpoint, {})
    return {"quant_method": found.pop()} if len(found) == 1 else None


def _of_sinq(checkpoint: Checkpoint, found: Config) -> Config:
    """Return a configuration with the settings of the layers, which stand elsewhere."""
    return {**found, "quant_method": SINQ, "layers": sinq_settings.layers(checkpoint)}


def _of_modelopt(found: Config) -> Config:
    """Return a configuration; of ModelOpt's hf_quant_config.json, which config.json may have, too, its inner part."""
    inner = found.get("quantization")
    return {"quant_method": "modelopt", **inner} if isinstance(inner, dict) and "quant_method" not in found else found


ONLINE: Config = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
"""What BitNet's class of 2024 does without a configuration (1bitLLM `modeling_bitnet.py`, `BitLinear`)."""

_ROTATED = "activations are rotated while the model runs, for which GGUF has no place"
WHY = {
    "eetq": "its int8 lie in the order of a CUDA kernel, which depends on the GPU and is not stated in the file",
    "exl3": "its codebooks are defined by CUDA code alone, with which nothing here can be compared",
    "fp_quant": "its matrices are rotated, and how its kernels order what they pack no program here can show",
    "higgs": "its codes lie in an order that FLUTE tuned for one GPU, and its matrices are rotated",
    "quip": _ROTATED,
}
"""Method → why its weights cannot be read; of the others no scheme is written."""

UNWRITTEN = "no reader of it is written"

_BY_TENSORS = {
    ".qweight": "gptq",
    ".W_q": "hqq",
    sinq_settings.SECOND: SINQ,
    ".weight._data": "quanto",
    ".weight._data._data": "quanto",
    ".q_weight": "exl2",
    ".experts.gate_up_proj_blocks": "mxfp4",
    ".mlp.mlp1_weight.blocks": "mxfp4",
}
"""End of a tensor's name that a scheme alone has → the scheme, of those that were saved without a configuration."""


_SIGNS = {
    "w_bit": "awq",
    "load_in_8bit": "bitsandbytes",
    "load_in_4bit": "bitsandbytes",
    "config_groups": "compressed-tensors",
}


_AUTO_ROUND = {
    f"{prefix}{form}": scheme
    for prefix in ("auto_round:", "")
    for form, scheme in (
        ("auto_gptq", "gptq"),
        ("gptq", "gptq"),
        ("gptqmodel", "gptq"),
        ("auto_awq", "awq"),
        ("awq", "awq"),
    )
} | {"auto_round": "gptq"}
"""What AutoRound packs as the schemes of others: `packing_format` → scheme. Source: auto-round `inference/backend.py`
(`GPTQ_FORMAT`, `GPTQ_FORMAT_NO_ZP`, `AWQ_FORMAT`), transformers' `AutoRoundConfig`."""


_FOUR_BIT_FLOATS = frozenset({"mx_fp", "mx_fp_rceil", "nv_fp", "nv_fp4_with_static_gs"})
"""AutoRound's names of MXFP4, MXFP8 and NVFP4, which it packs as compressed-tensors does: `qlinear_fp.py`."""


def method_of(config: Config, tensors: Iterable[str] = ()) -> str:
    """Return the name of the scheme, also for configurations that do not state it: MLX's, and old ones."""
    declared = config.get("quant_method", config.get("method"))  # GPTQModel is about to write the latter alone
    if isinstance(declared, str) and declared.lower() in ("auto-round", "intel/auto-round"):
        return _of_auto_round(config)
    if isinstance(declared, str):
        return _SPELLED.get(declared.lower(), declared.lower())
    for key, method in _SIGNS.items():
        if key in config:
            return method
    if "bits" not in config or "group_size" not in config:
        return "unnamed"
    return "gptq" if any(name.endswith((".qweight", ".g_idx")) for name in tensors) else "mlx"


_SPELLED = {"compressed_tensors": "compressed-tensors"} | {
    f"modelopt_{kind}": "modelopt" for kind in ("fp4", "mxfp8", "mixed")
}
"""Names of schemes as other programs spell them → ours. Source: vLLM 0.9, `ModelConfig._verify_quantization`, which
replaces the first; `model_executor/layers/quantization/__init__.py` of today (`QuantizationMethods`), which lists the
others beside `modelopt`."""


def _of_auto_round(config: Config) -> str:
    """Return the scheme whose layout AutoRound packed; a name of no scheme for what is none of ours."""
    form, kind = str(config.get("packing_format", "auto_round:gptq")), config.get("data_type", "int")
    rotated = next((key for key in ("rotation_config", "spinquant_config") if config.get(key)), None)
    if rotated is not None:
        return f"auto-round with activations that are rotated while the model runs ({rotated})"
    single = config.get("extra_config")
    layers = single.values() if isinstance(single, dict) else ()
    kinds = {
        str(kind),
        *(str(layer["data_type"]) for layer in layers if isinstance(layer, dict) and "data_type" in layer),
    }
    if form == "auto_round:llm_compressor" and kinds <= _FOUR_BIT_FLOATS:
        return "compressed-tensors"
    return (_AUTO_ROUND.get(form) if kind == "int" else None) or f"auto-round, {form} of {kind}"


def _refuse_unexplained(checkpoint: Checkpoint, packed: list[TensorRef]) -> None:
    odd = next((name for name in checkpoint.tensors if name.endswith(MARKS)), None)
    if packed and odd is not None:
        raise UnsupportedError(
            "weights are quantized and no configuration says how",
            path=checkpoint.path,
            found=odd,
            hint="config.json has a quantization_config, or quantize_config.json stands beside it",
        )


def _shown(checkpoint: Checkpoint, found: Found) -> Checkpoint:
    source = Dequantized(checkpoint.path)
    natural = natural_type(checkpoint)
    tensors: dict[str, TensorRef] = {}
    dropped = list(found.dropped)
    carried: Counter[tuple[str, bool, str]] = Counter()
    for name, ref in checkpoint.tensors.items():
        if name in found.matrices:
            made = found.matrices[name]
            if made.name != name and made.name in checkpoint.tensors:
                raise InconsistentError(f"{made.name!r} is present both plain and quantized", path=checkpoint.path)
            exact, why = exact_types(made.groups, made.shape[-1]) if made.groups else ((), made.why)
            integers = ref.type.name not in FP8 and made.form != "sparse"
            form = made.form or "quantized"
            derived = Derivation(found.scheme, block_type(natural), integers, exact, why, form, linear=found.linear)
            tensors[made.name] = source.add(
                made.name, made.shape, made.rows, len(checkpoint.files), derived, made.kind, made.groups
            )
            carried[(exact[0] if exact else "F32") if made.kind == "F32" else made.kind, bool(exact), why] += 1
        elif name in found.used:
            continue
        elif name.endswith(RUNTIME):
            dropped.append(Dropped(ref, "a scale for activations or caches, which a GGUF model does not quantize so"))
        else:
            tensors[name] = ref
    return replace(
        checkpoint,
        files=(*checkpoint.files, source),
        tensors=tensors,
        metadata={**checkpoint.metadata, **found.declared},
        notes=(*checkpoint.notes, *_notes(found.scheme, carried, natural)),
        dropped=(*checkpoint.dropped, *(drop for drop in dropped if drop.ref.name not in tensors)),
    )


def _notes(scheme: str, carried: Counter[tuple[str, bool, str]], natural: str) -> list[str]:
    """Return what became of the quantized tensors, a line for each kind of result.

    `carried` counts them by type, whether it is one of blocks made of values, and why it is none of blocks.
    """
    lines = []
    for (kind, exact, why), count in sorted(carried.items()):
        if exact:
            outcome = (
                f"fit blocks of {kind}: 'keep' carries them without quantizing again (--dequantize makes {natural} of "
                "them), every other type is made of their values"
            )
            if kind == "NVFP4":
                outcome += (
                    "; their own scales stand beside them where llama.cpp multiplies by these, elsewhere 'keep' makes "
                    f"{natural} of them"
                )
        elif kind == "F32":
            outcome = (
                f"are dequantized{f' ({why})' if why else ''}; 'keep' makes {natural} of them, as config.json names "
                "it, and --outtype f32 loses nothing"
            )
        else:
            outcome = f"are laid out as GGUF has {kind}; 'keep' loses nothing"
        lines.append(f"{count} tensors were quantized already ({scheme}) and {outcome}")
    return lines


def natural_type(checkpoint: Checkpoint) -> str:
    """Return the type that config.json states for the model; float32, which is exact, where it states none."""
    config = checkpoint.metadata
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, dict) else {}):
        declared = place.get("dtype") or place.get("torch_dtype")
        if isinstance(declared, str):
            return NATURAL.get(declared.removeprefix("torch."), "F32")
    return "F32"
