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

from ggferry.converters.trainer_names.boxes import entry, flat, joined, rows, transposed
from ggferry.converters.trainer_names.mlx_lm.folded import FAMILIES, unfolded
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
_CONV1D = re.compile(r"transformer\.h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
"""Matrices of GPT-2 that mlx-lm transposes (`models/gpt2.py`); quantized ones `schemes.mlx` marks as linear layers."""
_CONVOLUTION = re.compile(r".+\.(conv1d|conv|[qkv]_conv1d)\.weight")
_KIMI = (
    (".mlp.switch_mlp.", ".block_sparse_moe.switch_mlp."),
    (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
    (".mlp.routed_expert_", ".block_sparse_moe.routed_expert_"),
    (".mlp.gate.", ".block_sparse_moe.gate."),
    (".mlp.e_score_correction_bias", ".block_sparse_moe.gate.e_score_correction_bias"),
    (".q_conv.conv.weight", ".q_conv1d.weight"),
    (".k_conv.conv.weight", ".k_conv1d.weight"),
    (".v_conv.conv.weight", ".v_conv1d.weight"),
)
_RENAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bailing_moe": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "bailing_moe_v2": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "bailing_hybrid": ((".mlp.gate.gate_proj.", ".mlp.gate."),),
    "exaone_moe": ((".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),),
    "laguna": (
        (".mlp.gate.proj.", ".mlp.gate."),
        (".mlp.gate.e_score_correction_bias", ".mlp.experts.e_score_correction_bias"),
    ),
    "kimi_k3": _KIMI,
    "kimi_linear": _KIMI,
    "step3p5": (
        (".mlp.gate.gate.", ".moe.gate."),
        (".mlp.gate.router_bias", ".moe.router_bias"),
        (".mlp.share_expert.", ".share_expert."),
    ),
}
"""Model type → parts of names, as mlx-lm has them and as the publishers do."""
_THIRDS = re.compile(r"(?P<before>.+\.self_attn\.)qkv_(?P<end>proj\.(weight|scales|biases)|conv\.conv\.weight)")
"""Queries, keys and values of Kimi K3's delta attention, which mlx-lm has in one, and their convolutions."""
_IN_THIRDS = ("kimi_k3", "kimi_linear")  # the published text half of the former says the latter
_ENDS = {"conv.conv.weight": "conv1d.weight"}
_PREFIXES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "gpt2": (("model.", "transformer."),),
    "gpt_neox": (("model.h.", "gpt_neox.layers."), ("model.embed_out.", "embed_out."), ("model.", "gpt_neox.")),
    "gptj": (("model.", "transformer."),),
}
"""Model type → beginnings of names, as mlx-lm has them and as the publishers do; the first that fits."""
_LETTERED = ("lfm2_moe",)
"""Model types whose publishers call all gated networks by letters, within `feed_forward`."""
_BY_HEADS = {"rwkv7": (".k_k", ".k_a", ".g_norm.weight", ".g_norm.bias")}
"""Model type → vectors that mlx-lm reshapes, a row for each head (`models/rwkv7.py`)."""
_DROPPED = {"ernie4_5_moe": (".e_score_correction_bias", "moe_use_aux_free")}
"""Model type → what mlx-lm leaves out, and the key of the configuration that says whether the model has it."""
APART = ("granitemoe", "granitemoehybrid")
"""Model types whose publishers have gate and up in one stack, and GGUF, as mlx-lm, has them apart (`roles`)."""
_FUSED: Mapping[str, tuple[str, str]] = {
    "gemma4": ("gate_up_proj", "down_proj"),
    "gemma4_text": ("gate_up_proj", "down_proj"),
}
"""Model type → names of the stacks, gate and up in one, of publishers that keep stacks themselves."""


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
    if family in FAMILIES and is_folded(checkpoint):
        checkpoint = unfolded(checkpoint)
    _refuse_dropped(checkpoint, family)
    tensors: dict[str, TensorRef] = {}
    moved: dict[str, list[str]] = {}
    pairs: dict[str, dict[int, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        publishers = _renamed(name, family)
        match = _stack(publishers, family)
        if match is not None and family in _FUSED:
            found = [_joint(match, ref, name, family, pairs, checkpoint.path)]
        else:
            found = list(_published(publishers, ref, match, family, checkpoint.path))
        tensors |= {target: one for target, one in found if one is not None}
        if name.endswith(".weight") and [target for target, _ in found] != [name]:
            moved[_without_end(name)] = [_without_end(target) for target, _ in found]
    for place, both in pairs.items():
        if len(both) < len(_JOINED):
            raise InconsistentError(f"{place}: gate or up alone", path=checkpoint.path, found=both.popitem()[1].name)
        tensors[place] = joined([both[0], both[1]], place, 1, checkpoint.path)
    if all(name in tensors and tensors[name].shape == ref.shape for name, ref in checkpoint.tensors.items()):
        return checkpoint
    config = {**checkpoint.metadata, **_settings(checkpoint, moved)}
    return renamed(replace(checkpoint, metadata=config), NAME, tensors)


def _refuse_dropped(checkpoint: Checkpoint, family: str) -> None:
    """Raise UnsupportedError where the model needs tensors that mlx-lm leaves out."""
    part, key = _DROPPED.get(family, ("", ""))
    if part and checkpoint.metadata.get(key) is not False and not any(part in name for name in checkpoint.tensors):
        raise UnsupportedError(
            f"mlx-lm leaves out what the model chooses its experts by ({part})",
            path=checkpoint.path,
            expected=f"such tensors, or {key} false",
            hint="convert the checkpoint that it was made of",
        )


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
    for own, publishers in _PREFIXES.get(family, ()):
        if name.startswith(own):
            return publishers + name.removeprefix(own)
    for own, publishers in _RENAMES.get(family, ()):
        if own in name:
            return name.replace(own, publishers)
    if family == "step3p5" and ".mlp.switch_mlp." in name:
        return name.replace(".mlp.switch_mlp.", ".moe.")
    if family in _LETTERED and ".feed_forward." in name and ".switch_mlp." not in name:
        for own, letter in _LETTERS.items():
            name = name.replace(f".feed_forward.{own}.", f".feed_forward.{letter}.")
    return name


def _as_published(ref: TensorRef, name: str, family: str, path: str) -> TensorRef:
    """Return the tensor under its name; of a convolution over time, two axes exchanged back, one of which is 1; of
    vectors that mlx-lm has head by head, one axis."""
    ref = replace(ref, name=name)
    if family in _BY_HEADS and len(ref.shape) == 2 and name.endswith(_BY_HEADS[family]):
        return flat(ref, name, path)
    return transposed(ref, name, path, (0, 2, 1)) if _is_exchanged(ref) else ref


def _stack(name: str, family: str) -> re.Match[str] | None:
    """Return what a name of a stack of experts consists of; None for other tensors."""
    match = _STACK.fullmatch(name)
    if match is None or family in APART:
        return None
    single = match["stack"] == "experts" and match["before"].rpartition(".")[2].isdecimal()
    return None if single else match


def _published(
    name: str, ref: TensorRef, match: re.Match[str] | None, family: str, path: str
) -> Iterator[tuple[str, TensorRef]]:
    """Yield the tensors of the publisher that one of mlx-lm is, by name: itself, or those that it joins."""
    if match is not None:
        yield from _apart(match, ref, family, path)
    elif family in _IN_THIRDS and (thirds := _THIRDS.fullmatch(name)):
        if not ref.shape or ref.shape[0] % 3:
            raise ShapeError(f"{ref.name}, three in one", path=path, found=list(ref.shape), expected="rows of each")
        height = ref.shape[0] // 3
        for number, part in enumerate("qkv"):
            target = f"{thirds['before']}{part}_{_ENDS.get(thirds['end'], thirds['end'])}"
            one = rows(ref, target, [(number * height, (number + 1) * height)], path)
            yield target, _as_published(one, target, family, path)
    else:
        one = _as_published(ref, name, family, path)
        if name != ref.name and _CONV1D.fullmatch(name) and ref.type.name != "U32":
            one = transposed(ref, name, path)
        yield name, one


def _joint(
    match: re.Match[str], ref: TensorRef, name: str, family: str, pairs: dict[str, dict[int, TensorRef]], path: str
) -> tuple[str, TensorRef | None]:
    """Return the place of a stack of a family that has gate and up in one, and the stack.

    None for gate and up, which are added to `pairs`.
    """
    if match["end"] == "global_scale":
        raise UnsupportedError(
            "gate and up of a stack, which this family has in one, with a global scale each",
            path=path,
            found=name,
            hint="convert the checkpoint that it was made of",
        )
    target = _fused(match, _FUSED[family])
    place = target if match["end"] == "weight" else f"{_without_end(target)}.{match['end']}"
    if match["part"] not in _JOINED:
        return place, replace(ref, name=place)
    pairs.setdefault(place, {})[_JOINED[match["part"]]] = ref
    return place, None


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
