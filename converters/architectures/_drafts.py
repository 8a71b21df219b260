"""What drafts have in common: models that guess tokens for another one, beside which runtimes load them.

They read its states, take its vocabulary, and use its embeddings and output matrix where they have none of their own.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import TARGET, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.values import Counted
from ggferry.converters.schema.roles import roles

N_VOCAB = replace(common.N_VOCAB, fields={"hf": f"vocab_size|{TARGET}.vocab_size"})
TARGET_VOCAB = HParam(
    "target_vocab", None, fields={"hf": f"{TARGET}.vocab_size"}, required=False, check="target_vocab == n_vocab"
)


def mapped_rows(values: Values) -> int:
    """Rows of the output of which `d2t` says which token they are: none without that tensor."""
    return int(values.get("n_mapped", 0))


DRAFT_ROWS = (
    HParam("n_draft", None, fields={"hf": "draft_vocab_size"}, required=False, check="n_draft <= n_vocab"),
    HParam("n_mapped", None, required=False),
    HParam("n_told", None, derive=mapped_rows, required=False, check="n_draft == n_vocab or n_told == n_draft"),
)
"""Rows of the output, and for how many of them `d2t` says which token it is."""
DROP_T2D = Drop("t2d", "says which of the target's tokens the draft has, as d2t does", follows=True)
IGNORED_KEYS = IgnoredKey(
    f"{TARGET}.* auto_map num_target_layers target_model_type eagle_config.* speculators_* has_no_defaults_at_init "
    "embed_requires_grad transformer_layer_config.* verifier* training_* max_anchors num_anchors",
    "of the model it guesses for, or of how it is used and was trained",
)


def eagle_layers(values: Values) -> tuple[int, ...] | None:
    """The target's blocks whose inputs are read: as listed, or one behind listed outputs, or EAGLE-3's three.

    Sources: llama.cpp `conversion/llama.py`, vLLM `get_eagle3_aux_hidden_state_layers`; SGLang and SpecForge list
    outputs in `eagle_config` (`set_eagle3_layers_to_capture`).
    """
    if declared := values.get("target_stated"):
        return tuple(declared)
    if outputs := values.get("target_outputs"):
        return tuple(number + 1 for number in outputs)
    blocks = int(values["n_layer_target"])
    if blocks < 4:
        raise ValueError(f"a target of {blocks} blocks has no block 2, middle and last but two")
    return (2, blocks // 2, blocks - 3)


def frame(
    fc: str = "fc", norm: str = "hidden_norm", *, rows: str, width: str, norm_when: str = ""
) -> Sequence[Role]:
    """Return what stands before and behind the blocks of a draft.

    `fc`, `norm`: the source's names of the matrix that reads the target's states, `rows` numbers of them, and of the
    norm before or behind it, which is `width` wide.
    """
    when = f" when={norm_when}" if norm_when else ""
    return roles(
        f"""
        token_embd.weight optional       : n_vocab n_embd | hf embed_tokens.weight
        fc.weight                        : n_embd {rows}  | hf {fc}.weight
        enc.output_norm.weight f32{when} : {width}        | hf {norm}.weight
        output_norm.weight f32           : n_embd         | hf norm.weight
        output.weight optional           : n_draft n_embd | hf lm_head.weight
        d2t optional                     : n_mapped       | hf d2t @ids
        """,
        ids=Counted(),
    )
