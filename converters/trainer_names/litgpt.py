"""litgpt's `lit_model.pth`: queries, keys and values in one matrix, and names of its own.

Source: litgpt 0.5.13 `scripts/convert_lit_checkpoint.py`, `scripts/convert_hf_checkpoint.py`, `model.py`
(`_load_from_state_dict`). `attn.qkv` has all queries, then all keys, then all values; `attn.attn`, its name before 0.5,
has them group by group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ggferry.converters.trainer_names.boxes import joined, rows
from ggferry.converters.trainer_names.model_class import classes_of, renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, ShapeError, UnexpectedTensorError, UnsupportedError
from ggferry.support.records import dataclass

NAME = "litgpt"
_BLOCK = re.compile(r"transformer\.h\.(\d{1,4})\.(.+)\.(weight|bias)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.(fc_1|fc_2|proj)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Family:
    """What transformers calls the tensors of some classes.

    Attributes:
        block: What stands before the number of a block.
        names: litgpt's name within a block → transformers'.
        outside: litgpt's name outside of blocks → transformers'.
        joined: The name of the one matrix of queries, keys and values; '' where there are three.
        grouped: Whether that matrix has them group by group.
        both: The name of the one matrix of gate and up projection; '' where there are two.
        experts: What stands before the number of an expert, and the names of its matrices fc_1, fc_2 and proj.
    """

    block: str
    names: Mapping[str, str]
    outside: Mapping[str, str]
    joined: str = ""
    grouped: bool = False
    both: str = ""
    experts: tuple[str, ...] = ()


_OUTSIDE = {"transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "lm_head": "lm_head"}
_NAMES = {
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attn.proj": "self_attn.o_proj",
    "attn.norm_q": "self_attn.q_norm",
    "attn.norm_k": "self_attn.k_norm",
    "mlp.fc_1": "mlp.gate_proj",
    "mlp.fc_2": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
_FOUR_NORMS = {
    "norm_2": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_LLAMA = Family("model.layers", _NAMES, _OUTSIDE)
_GEMMA = Family("model.layers", {**_NAMES, **_FOUR_NORMS}, _OUTSIDE)
_MIXTRAL = Family(
    "model.layers",
    {**_NAMES, "mlp.gate": "block_sparse_moe.gate"},
    _OUTSIDE,
    experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
)
_QWEN_MOE = Family(
    "model.layers",
    {**_NAMES, "mlp.gate": "mlp.gate"},
    _OUTSIDE,
    experts=("mlp.experts", "gate_proj", "up_proj", "down_proj"),
)
_OLMO2 = Family("model.layers", {**_NAMES, "post_mlp_norm": "post_feedforward_layernorm"}, _OUTSIDE)
_PHI = Family(
    "model.layers",
    {"norm_1": "input_layernorm", "attn.proj": "self_attn.dense", "mlp.fc": "mlp.fc1", "mlp.proj": "mlp.fc2"},
    {**_OUTSIDE, "transformer.ln_f": "model.final_layernorm"},
)
_PHI3 = Family("model.layers", _NAMES, _OUTSIDE, joined="self_attn.qkv_proj", both="mlp.gate_up_proj")
_NEOX = Family(
    "gpt_neox.layers",
    {
        "norm_1": "input_layernorm",
        "norm_2": "post_attention_layernorm",
        "attn.proj": "attention.dense",
        "mlp.fc": "mlp.dense_h_to_4h",
        "mlp.proj": "mlp.dense_4h_to_h",
    },
    {"transformer.wte": "gpt_neox.embed_in", "transformer.ln_f": "gpt_neox.final_layer_norm", "lm_head": "embed_out"},
    joined="attention.query_key_value",
    grouped=True,
)
_FALCON = Family(
    "transformer.h",
    {
        "attn.proj": "self_attention.dense",
        "mlp.fc": "mlp.dense_h_to_4h",
        "mlp.proj": "mlp.dense_4h_to_h",
        "norm_1": "input_layernorm",
    },
    {"transformer.wte": "transformer.word_embeddings", "transformer.ln_f": "transformer.ln_f", "lm_head": "lm_head"},
    joined="self_attention.query_key_value",
    grouped=True,
)
_FALCON_TWO = Family(
    "transformer.h", {**_FALCON.names, "norm_1": "ln_attn", "norm_2": "ln_mlp"}, _FALCON.outside, _FALCON.joined, True
)
_FAMILIES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "GemmaForCausalLM", "Qwen2ForCausalLM"), _LLAMA),
    **dict.fromkeys(("Qwen3ForCausalLM", "StableLmForCausalLM", "OlmoForCausalLM"), _LLAMA),
    **dict.fromkeys(("Gemma2ForCausalLM", "Gemma3ForCausalLM"), _GEMMA),
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Olmo2ForCausalLM": _OLMO2,
    "PhiForCausalLM": _PHI,
    "Phi3ForCausalLM": _PHI3,
    "GPTNeoXForCausalLM": _NEOX,
    "FalconForCausalLM": _FALCON,
}


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as litgpt calls them."""
    names, first = checkpoint.tensors, "transformer.h.0.attn"
    return "transformer.wte.weight" in names and any(f"{first}.{one}.weight" in names for one in ("qkv", "attn"))


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of its class in transformers.

    Raises UnsupportedError for a class whose names are not known here, MissingError without one, UnexpectedTensorError
    for a tensor that litgpt's class has not, ShapeError.
    """
    family = _family(checkpoint)
    tensors: dict[str, TensorRef] = {}
    for ref in _renamed(checkpoint, family):
        if ref.name in tensors:
            raise UnexpectedTensorError("duplicate tensor name", path=checkpoint.path, found=ref.name)
        tensors[ref.name] = ref
    return renamed(checkpoint, NAME, tensors)


def _family(checkpoint: Checkpoint) -> Family:
    hint = "litgpt keeps the model's beside its own; --hf-config DIR takes it from elsewhere"
    classes = classes_of(checkpoint, NAME, hint)
    found = next((_FAMILIES[name] for name in classes if name in _FAMILIES), None)
    if found is None:
        hint = "litgpt convert_from_litgpt makes transformers' names of them"
        raise UnsupportedError(
            "litgpt's names of this class",
            path=checkpoint.path,
            found=classes[0],
            expected=", ".join(_FAMILIES),
            hint=hint,
        )
    return _FALCON_TWO if found is _FALCON and "transformer.h.0.norm_2.weight" in checkpoint.tensors else found


def _renamed(checkpoint: Checkpoint, family: Family) -> Iterator[TensorRef]:
    for name, ref in checkpoint.tensors.items():
        match, (short, _, kind) = _BLOCK.fullmatch(name), name.rpartition(".")
        if match is None:
            if short not in family.outside or kind not in ("weight", "bias"):
                raise _unknown(checkpoint, name)
            yield replace(ref, name=f"{family.outside[short]}.{kind}")
            continue
        number, inner, kind = match.groups()
        block = f"{family.block}.{number}"
        if inner in ("attn.qkv", "attn.attn"):
            yield from _attention(checkpoint, family, ref, block, inner == "attn.attn")
        elif family.both and inner in ("mlp.fc_1", "mlp.fc_2"):
            if inner == "mlp.fc_1":
                other = checkpoint.tensors.get(name.replace(".fc_1.", ".fc_2."))
                if other is None:
                    raise MissingError(f"{name} without its other half", path=checkpoint.path, expected="mlp.fc_2")
                yield joined((ref, other), f"{block}.{family.both}.{kind}", 0, checkpoint.path)
        elif (expert := _EXPERT.fullmatch(inner)) is not None and family.experts:
            before, *own = family.experts
            yield replace(
                ref, name=f"{block}.{before}.{expert[1]}.{own[('fc_1', 'fc_2', 'proj').index(expert[2])]}.{kind}"
            )
        elif inner in family.names:
            yield replace(ref, name=f"{block}.{family.names[inner]}.{kind}")
        else:
            raise _unknown(checkpoint, name)


def _unknown(checkpoint: Checkpoint, name: str) -> UnexpectedTensorError:
    hint = "LoRA and adapters of litgpt are merged by `litgpt merge_lora` first" if "lora" in name else None
    return UnexpectedTensorError("tensor is unknown to litgpt", path=checkpoint.path, found=name, hint=hint)


def _attention(
    checkpoint: Checkpoint, family: Family, ref: TensorRef, block: str, grouped: bool
) -> Iterator[TensorRef]:
    """Yield queries, keys and values of `attn.qkv`, or of `attn.attn` (`grouped`), as the family has them."""
    queries, keys, size = _heads(checkpoint, ref)
    kind = ref.name.rpartition(".")[2]
    if family.joined and grouped == family.grouped:
        yield replace(ref, name=f"{block}.{family.joined}.{kind}")
        return
    many, step = queries // keys, queries // keys + 2
    if grouped:
        q = [(g * step * size, (g * step + many) * size) for g in range(keys)]
        k = [((g * step + many) * size, (g * step + many + 1) * size) for g in range(keys)]
        v = [((g * step + many + 1) * size, (g + 1) * step * size) for g in range(keys)]
    else:
        q, k, v = ([(first * size, last * size)] for first, last in _thirds(queries, keys))
    if not family.joined:
        for part, runs in zip(("q_proj", "k_proj", "v_proj"), (q, k, v), strict=True):
            yield rows(ref, f"{block}.self_attn.{part}.{kind}", runs, checkpoint.path)
        return
    if family.grouped:
        each = [
            (
                (g * many * size, (g + 1) * many * size),
                *(((at + g) * size, (at + g + 1) * size) for at in (queries, queries + keys)),
            )
            for g in range(keys)
        ]
        runs = [run for group in each for run in group]
    else:
        runs = [*q, *k, *v]
    yield rows(ref, f"{block}.{family.joined}.{kind}", runs, checkpoint.path)


def _thirds(queries: int, keys: int) -> tuple[tuple[int, int], ...]:
    return (0, queries), (queries, queries + keys), (queries + keys, queries + 2 * keys)


def _heads(checkpoint: Checkpoint, ref: TensorRef) -> tuple[int, int, int]:
    """Return the heads of queries, those of keys, and the size of one. Raises ShapeError, MissingError."""
    config = checkpoint.metadata
    queries = config.get("num_attention_heads", config.get("n_head"))
    keys = config.get("num_key_value_heads") or queries
    if "GPTNeoXForCausalLM" in config.get("architectures", ()):
        keys = queries
    if "FalconForCausalLM" in config.get("architectures", ()):
        new, multi = config.get("new_decoder_architecture", False), config.get("multi_query", True)
        keys = config.get("num_kv_heads") or queries if new else 1 if multi else queries
    if type(queries) is not int or type(keys) is not int or not 0 < keys <= queries or queries % keys:
        raise MissingError("heads of the model", path=checkpoint.path, found=[queries, keys], expected="in config.json")
    size, rest = divmod(ref.shape[0] if ref.shape else 0, queries + 2 * keys)
    if rest or not size:
        raise ShapeError(
            f"rows of {ref.name}", path=checkpoint.path, found=ref.shape, expected=f"{queries} + 2 × {keys} heads"
        )
    return queries, keys, size
