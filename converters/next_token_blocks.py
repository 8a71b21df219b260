"""Blocks that predict further tokens (NextN, MTP): whether a checkpoint has them, and files of nothing else.

llama.cpp takes a file without the first block of the decoder as one of such blocks alone, a draft beside the file that
has the decoder (`nextn_flags` in `llama-model.cpp`, b11549); `convert_hf_to_gguf.py --mtp` writes it. It has the keys
of the whole model, and of the decoder the embedding, the last norm and the output matrix. It is proved by a forward
pass over fixed states in place of the decoder's (`forward.drafts.next_tokens`): the decoder need not be read for it.
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.model_graph.graph import ModelGraph, losses
from ggferry.converters.schema.architecture import Architecture, Caveat, Role
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import Roles, both
from ggferry.formats.checkpoint import Checkpoint, Dropped

LOADED_ALONE = (
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next", "hy_v3",
    "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "step35",
)  # fmt: skip
"""Of the architectures that carry such blocks, those whose loader asks `nextn_flags` (`src/models`, b11549)."""
ALONE = "alone"
"""The dialect in which such blocks are read where a file can hold them alone, but not beside the decoder: DeepSeek V4's
mix their streams by tensors that have the decoder's names in GGUF."""
_SERIES = "blk."
_LEFT_OUT = "of the decoder: --mtp-only writes the blocks that predict further tokens alone"
_COMPUTATION = "ggferry.converters.forward.drafts.next_tokens"
NOT_LOADED = Caveat(
    "n_nextn > 0",
    "llama.cpp loads no file of such blocks alone for this architecture; ggferry merge puts it onto a file of the "
    "decoder",
    unsupported_by="llama.cpp",
)


def has_place(architecture: Architecture) -> bool:
    """Return whether files of the architecture may have blocks that predict further tokens."""
    return "mtp" in (param.name for param in architecture.hparams)


def only_alone(architecture: Architecture) -> bool:
    """Return whether such blocks and the decoder cannot be in one file."""
    return any(dialect.name == ALONE for dialect in architecture.dialects)


def own_names(architecture: Architecture) -> frozenset[str]:
    """Return the tensors outside the blocks that a file of such blocks has of its own, and not the decoder's."""
    if not only_alone(architecture):
        return frozenset()
    known = (role for role in architecture.roles if not role.per_block and ALONE in role.sources)
    return frozenset(role.name for role in known if role.sources[ALONE] != role.sources.get("hf"))


def are_alone(checkpoint: Checkpoint, architecture: Architecture) -> bool:
    """Return whether a GGUF file has blocks that predict further tokens, and none of the decoder before them."""
    blocks = [name for name in checkpoint.tensors if name.startswith(_SERIES)]
    predicting = checkpoint.container == "gguf" and has_place(architecture)
    return predicting and any(".nextn." in name for name in blocks) and not any(n.startswith("blk.0.") for n in blocks)


def bundled_dialect(checkpoint: Checkpoint, architecture: Architecture) -> str | None:
    """Return the dialect in which a training checkpoint holds a draft of this architecture for itself, if it does so.

    It is `Dialect.bundled`.
    """
    named = checkpoint.metadata.get("architectures")
    for dialect in architecture.dialects:
        if dialect.bundled and named == [dialect.bundled[0]] and dialect.bundled[1] in checkpoint.metadata:
            return dialect.name
    return None


def alone(architecture: Architecture) -> Architecture:
    """Return the table of such a file: no block before those that predict, and their forward pass."""
    table = architecture.roles

    def made() -> tuple[Role, ...]:
        read = (role for role in table if not role.name.startswith(architecture.of_decoder))
        return tuple(
            replace(role, when=both(role.when, "n >= n_layer")) if role.series == _SERIES else role for role in read
        )

    caveats = architecture.caveats if architecture.name in LOADED_ALONE else (*architecture.caveats, NOT_LOADED)
    recipe: Conventions = {**architecture.recipe, "computation": _COMPUTATION}
    return replace(architecture, roles=Roles(made), recipe=recipe, caveats=caveats)


def without_decoder(graph: ModelGraph) -> ModelGraph:
    """Return the graph of a whole model with the blocks that predict, and of the rest what the decoder has but once."""
    first = graph.sizes["n_layer"]
    unread = graph.architecture.of_decoder
    whole = (node for node in graph.nodes if not node.name.startswith(unread))
    kept = tuple(node for node in whole if not node.role.per_block or block_of(node.name) >= first)
    left_out = {param.name for param in graph.architecture.hparams if (param.key or param.name).startswith(unread)}
    by_name = {node.name: node for node in kept}
    inputs = {ref.name: ref for node in graph.nodes if node.name not in by_name for ref in node.inputs}
    gone = tuple(Dropped(ref, _LEFT_OUT) for ref in inputs.values())
    architecture = alone(graph.architecture)
    notes = [NOT_LOADED.text] if NOT_LOADED in architecture.caveats else []
    return replace(
        graph,
        architecture=architecture,
        nodes=kept,
        hparams={name: param for name, param in graph.hparams.items() if name not in left_out},
        dropped=(*graph.dropped, *gone),
        notes=(*graph.notes, *(loss.note for loss in losses(gone)), *notes),
        by_name=by_name,
    )


def block_of(name: str) -> int:
    """Return the number of a tensor's block in GGUF; -1 for a tensor of the whole model."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if first == "blk" and number.isdecimal() else -1
