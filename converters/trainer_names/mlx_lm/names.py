"""Names of mlx-lm carried to those of transformers: experts in stacks become one matrix for each expert again.

mlx-lm (0.32.2, `sanitize` of each module of `mlx_lm/models/`) joins the experts of a block in `switch_mlp.gate_proj`,
`up_proj` and `down_proj`, three axes each, quantized or not, and renames a few other tensors. Values stay what they
are, but for those that `roles` knows. Nothing is read here: what is returned says from where in the files it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.trainer_names.boxes import entry, joined, transposed
from ggferry.converters.trainer_names.model_class import renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError, UnsupportedError

NAME = "mlx-lm"
SETTINGS = ("quantization", "quantization_config")
_STACK = re.compile(
    r"(?P<before>.+)\.(?P<stack>switch_mlp|switch_glu|experts)\.(?P<part>gate_proj|up_proj|down_proj|fc1|fc2)"
    r"\.(?P<end>weight|scales|biases|bias|global_scale)"
)
_OWN = (".switch_mlp.", ".switch_glu.")
"""Parts of names that mlx-lm alone has."""
_LETTERS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_PLAIN = {"fc1": "up_proj", "fc2": "down_proj"}
_JOINED = {"gate_proj": 0, "up_proj": 1}
"""Matrices that some families keep in one, gate before up."""
_CONVOLUTION = re.compile(r".+\.(conv1d|conv|[qkv]_conv1d)\.weight")
_RENAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bailing_moe": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "bailing_moe_v2": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "bailing_hybrid": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "exaone_moe": ((".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),),
    "laguna": (
        (".mlp.gate.proj.", ".mlp.gate."),
        (".mlp.gate.e_score_correction_bias", ".mlp.experts.e_score_correction_bias"),
    ),
    "kimi_linear": (
        (".mlp.switch_mlp.", ".block_sparse_moe.switch_mlp."),
        (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
        (".mlp.gate.", ".block_sparse_moe.gate."),
        (".mlp.e_score_correction_bias", ".block_sparse_moe.gate.e_score_correction_bias"),
        (".q_conv.conv.weight", ".q_conv1d.weight"),
        (".k_conv.conv.weight", ".k_conv1d.weight"),
        (".v_conv.conv.weight", ".v_conv1d.weight"),
    ),
    "step3p5": (
        (".mlp.gate.gate.", ".moe.gate."),
        (".mlp.gate.router_bias", ".moe.router_bias"),
        (".mlp.share_expert.", ".share_expert."),
    ),
}
"""Model type → parts of names, as mlx-lm has them and as the publishers do."""
_LETTERED = ("lfm2_moe",)
"""Model types whose publishers call all gated networks by letters, within `feed_forward`."""
APART = ("granitemoe", "granitemoehybrid")
"""Model types whose publishers have gate and up in one stack, and GGUF, as mlx-lm, has them apart (`roles`)."""
_FUSED: Mapping[str, tuple[str, str]] = {
    "gemma4": ("gate_up_proj", "down_proj"),
    "gemma4_text": ("gate_up_proj", "down_proj"),
}
"""Model type → names of the stacks, gate and up in one, of publishers that keep stacks themselves."""
_FOLDED = ("falcon_h1",)
"""Model types whose multipliers mlx-lm folds into weights as it sees fit (`models/falcon_h1.py`: those of keys are left
out), while config.json goes on to state them."""


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether mlx-lm wrote the checkpoint: its files say so, or names do that no other program has."""
    declared = checkpoint.header.get("metadata")
    if isinstance(declared, dict) and declared.get("format") == "mlx":
        return True
    return any(own in name for name in checkpoint.tensors for own in _OWN)


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint by the names and shapes of transformers; as it is where it has them already.

    Raises ShapeError for a stack that is none, InconsistentError where gate and up of a stack are packed differently.
    """
    family = model_type(checkpoint.metadata)
    if family in _FOLDED and is_folded(checkpoint):
        raise UnsupportedError(
            f"a {family} of mlx-lm: its multipliers are in the weights already, and not all of them",
            path=checkpoint.path,
            hint="convert the checkpoint that it was made of",
        )
    tensors: dict[str, TensorRef] = {}
    moved: dict[str, list[str]] = {}
    pairs: dict[str, dict[int, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        publishers = _renamed(name, family)
        match = _STACK.fullmatch(publishers)
        if (
            match is None
            or family in APART
            or (match["stack"] == "experts" and match["before"].rpartition(".")[2].isdecimal())
        ):
            tensors[publishers] = _convolution(ref, publishers, checkpoint.path)
            if publishers != name and name.endswith(".weight"):
                moved[_without_end(name)] = [_without_end(publishers)]
            continue
        base, end = name.rpartition(".")[0], match["end"]  # what mlx-lm calls the layer
        if family in _FUSED:
            if end == "global_scale":
                raise UnsupportedError(
                    "gate and up of a stack, which this family has in one, with a global scale each",
                    path=checkpoint.path,
                    found=name,
                    hint="convert the checkpoint that it was made of",
                )
            target = _fused(match, _FUSED[family])
            moved.setdefault(base, []).append(_without_end(target))
            place = target if end == "weight" else f"{_without_end(target)}.{end}"
            if match["part"] in _JOINED:
                pairs.setdefault(place, {})[_JOINED[match["part"]]] = ref
            else:
                tensors[place] = replace(ref, name=place)
        else:
            for target, one in _apart(match, ref, family, checkpoint.path):
                tensors[target] = one
                if end == "weight":
                    moved.setdefault(base, []).append(target.removesuffix(".weight"))
    for place, both in pairs.items():
        if len(both) < len(_JOINED):
            raise InconsistentError(f"{place}: gate or up alone", path=checkpoint.path, found=both.popitem()[1].name)
        tensors[place] = joined([both[0], both[1]], place, 1, checkpoint.path)
    if all(name in tensors and tensors[name].shape == ref.shape for name, ref in checkpoint.tensors.items()):
        return checkpoint
    config = {**checkpoint.metadata, **_settings(checkpoint, moved)}
    return renamed(replace(checkpoint, metadata=config), NAME, tensors)


def model_type(config: Mapping[str, Any]) -> str:
    """Return the model type that a configuration states, of a multimodal model that of its text part."""
    inner = config.get("text_config")
    for place in (inner if isinstance(inner, dict) else {}, config):
        if isinstance(place.get("model_type"), str):
            return str(place["model_type"])
    return ""


def is_folded(checkpoint: Checkpoint) -> bool:
    """Return whether some convolution has its last two axes exchanged, as mlx-lm leaves them when it has folded."""
    return any(_is_exchanged(ref) for ref in checkpoint.tensors.values())


def _is_exchanged(ref: TensorRef) -> bool:
    return len(ref.shape) == 3 and ref.shape[2] == 1 < ref.shape[1] and bool(_CONVOLUTION.fullmatch(ref.name))


def _renamed(name: str, family: str) -> str:
    for own, publishers in _RENAMES.get(family, ()):
        if own in name:
            return name.replace(own, publishers)
    if family == "step3p5" and ".mlp.switch_mlp." in name:
        return name.replace(".mlp.switch_mlp.", ".moe.")
    if family in _LETTERED and ".feed_forward." in name and ".switch_mlp." not in name:
        for own, letter in _LETTERS.items():
            name = name.replace(f".feed_forward.{own}.", f".feed_forward.{letter}.")
    return name


def _convolution(ref: TensorRef, name: str, path: str) -> TensorRef:
    """Return the tensor under its name; of a convolution over time, two axes exchanged back, one of which is 1."""
    ref = replace(ref, name=name)
    return transposed(ref, name, path, (0, 2, 1)) if _is_exchanged(ref) else ref


def _apart(match: re.Match[str], ref: TensorRef, family: str, path: str) -> Iterator[tuple[str, TensorRef]]:
    """Yield the parts of a stack, one for each expert, under the names that the publisher gives them."""
    lettered = match["before"].endswith(".block_sparse_moe") or family in _LETTERED
    part = _LETTERS.get(match["part"], match["part"]) if lettered else _PLAIN.get(match["part"], match["part"])
    if not ref.shape or (match["end"] in ("weight", "scales", "biases") and len(ref.shape) != 3):
        raise ShapeError(f"{ref.name}, a stack of experts", path=path, found=list(ref.shape), expected="three axes")
    for number in range(ref.shape[0]):
        name = f"{match['before']}.experts.{number}.{part}.{match['end']}"
        yield name, entry(ref, name, number, path)


def _fused(match: re.Match[str], names: tuple[str, str]) -> str:
    """Return what the publisher calls the stack: of gate and up together, or of down."""
    before = match["before"] + (".experts" if match["stack"] == "experts" else "")
    return f"{before}.{names[match['part'] not in _JOINED]}"


def _without_end(name: str) -> str:
    return name.removesuffix(".weight")


def _settings(checkpoint: Checkpoint, moved: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the settings of quantization with those of single layers under the names that the layers have now.

    Raises InconsistentError where matrices that become one have different settings.
    """
    found: dict[str, Any] = {}
    for key in SETTINGS:
        settings = checkpoint.metadata.get(key)
        if not isinstance(settings, dict):
            continue
        own = {base: settings[base] for base in moved if base in settings}
        more: dict[str, Any] = {}
        for base, targets in moved.items():
            for target in targets:
                if target in more and more[target] != own.get(base):
                    raise InconsistentError(
                        f"settings of {target}", path=checkpoint.path, found=own.get(base), expected=more[target]
                    )
                more[target] = own.get(base)
        found[key] = {**settings, **{target: value for target, value in more.items() if value is not None}}
    return found
