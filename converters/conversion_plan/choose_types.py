"""Choose the type of each tensor of the output: the source's own, the one asked for, or the one a recipe gives.

The rules themselves are in `quant/recipes/choose.py`. Here they are applied to a model: its tensors' present types, the
facts that a mixture depends on, the options of the command line, and what must not be done unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ggferry.converters.conversion_plan.carried_blocks import as_blocks, exact_types, form_of, own_scales
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.prequantized.own_scales import is_applied
from ggferry.formats.checkpoint import Derivation, TensorRef
from ggferry.formats.errors import RefusedError, UnsupportedError, UsageError
from ggferry.formats.gguf.values import Value
from ggferry.quant.codec import LLAMA_CPP, block_type, codec
from ggferry.quant.recipes.choose import ModelFacts, Recipe, TensorInfo, choose, recipe, require_imatrix
from ggferry.quant.recipes.mixtures import never_quantized
from ggferry.quant.recipes.text import parse_recipe
from ggferry.quant.types import EXPANSIONS, ROUNDINGS, SEARCH, STOCK, BlockError, BlockType
from ggferry.support.records import dataclass

KEEP = "keep"


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """What the user asked for. Fields that are not listed are llama-quantize's options of the same names.

    Attributes:
        outtype: 'keep', or a type name of llama-quantize.
        expand: Type for tensors whose blocks GGUF cannot hold.
        recipe_text: Text of a recipe file, which takes the place of `outtype`; None for none.
        rounding: How values are rounded where there is an importance matrix (`quant.codec`).
        dequantize: Whether 'keep' makes plain numbers of a quantized checkpoint's matrices that fit GGUF's blocks.
    """

    outtype: str = KEEP
    expand: str = "f16"
    recipe_text: str | None = None
    pure: bool = False
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    leave_output_tensor: bool = False
    allow_requantize: bool = False
    dequantize: bool = False
    rounding: str = STOCK

    def recipe(self) -> Recipe:
        """Return the recipe that these options name. Raises UsageError for a name or a text that is no recipe."""
        try:
            return recipe(self.outtype) if self.recipe_text is None else parse_recipe(self.recipe_text)
        except BlockError as error:
            raise UsageError(f"--outtype: {error}") from None

    def check(self) -> None:
        """Raise UsageError for a type that cannot be written."""
        self.recipe()
        if self.expand not in EXPANSIONS:
            raise UsageError("--expand", found=self.expand, expected=", ".join(EXPANSIONS))
        if self.rounding not in ROUNDINGS:
            raise UsageError("--rounding", found=self.rounding, expected=", ".join(ROUNDINGS))


class Decision(NamedTuple):
    """The type of a tensor in the output.

    Attributes:
        type: The type.
        why: The reason, where the type is not the one asked for.
        ragged: Whether the reason is rows that are no whole blocks (as in `Choice`).
        blocks: The inputs as blocks of this type, where they are carried without quantizing again; None where the type
            is made of their values.
    """

    type: BlockType
    why: str = ""
    ragged: bool = False
    blocks: tuple[TensorRef, ...] | None = None


def choose_types(
    graph: ModelGraph, options: TypeOptions, imatrix: Collection[str] | None = None
) -> dict[str, Decision]:
    """Return what is decided for each tensor, by its name.

    Args:
        graph: The model.
        options: What the user asked for.
        imatrix: Names of the entries of the importance matrix; None without one.

    Raises:
        UsageError: The options do not fit the model's tensors.
        RefusedError: What is quantized already (a checkpoint's integers too; FP8 counts as a float) would be quantized
            again, or the type or the rounding needs an importance matrix.
        UnsupportedError: No encoder of ours writes the type.
    """
    options.check()
    if options.rounding == SEARCH and imatrix is None:
        raise RefusedError(
            f"--rounding {SEARCH} searches by an importance matrix", path=graph.checkpoint.path, hint="--imatrix FILE"
        )
    as_is = graph.checkpoint.container == "gguf"
    exact: dict[str, tuple[str, ...]] = {}
    if not options.dequantize:
        exact = {n.name: exact_types(graph, n) for n in graph.nodes if n.inputs[0].derived is not None}
    kept = {
        n.name: _of_gguf(n) if as_is and not n.inputs[0].derived else _kept(graph, n, options, exact.get(n.name, ()))
        for n in graph.nodes
    }
    tensors = [TensorInfo(n.name, n.shape, kept[n.name][0].name, n.role.pinned, form_of(n)) for n in graph.nodes]
    try:
        choices = choose(
            options.recipe(),
            tensors,
            facts_of(graph),
            imatrix=imatrix is not None,
            pure=options.pure,
            output_tensor_type=options.output_tensor_type,
            token_embedding_type=options.token_embedding_type,
            tensor_types=options.tensor_types,
            leave_output_tensor=options.leave_output_tensor,
        )
    except BlockError as error:
        raise UsageError(str(error), path=graph.checkpoint.path) from None
    try:
        require_imatrix(choices, tensors, imatrix)
    except BlockError as error:
        raise RefusedError(str(error), path=graph.checkpoint.path, hint="--imatrix FILE") from None
    found = {}
    for node in graph.nodes:
        natural, why = kept[node.name]
        choice = choices[node.name]
        if choice.type in exact.get(node.name, ()):
            why = why if choice.type == natural.name else choice.why
            found[node.name] = Decision(block_type(choice.type), why, blocks=as_blocks(graph, node, choice.type))
        elif choice.type == natural.name:
            _check_runtime(graph, node, natural)
            found[node.name] = Decision(natural, why)
        else:
            found[node.name] = Decision(block_type(choice.type), choice.why, choice.ragged)
            check_encoding(graph, node, found[node.name].type, options)
    return found


def _of_gguf(node: Node) -> tuple[BlockType, str]:
    """Return the type that a tensor of a GGUF file keeps, and why where it is not its own."""
    source = node.inputs[0].type
    one = codec(source.name)
    if one.runtime == LLAMA_CPP or one.repack is None or not node.layout.block_safe:
        return source, ""
    return block_type(one.repack.target), f"llama.cpp's form of {source}"


def _check_runtime(graph: ModelGraph, node: Node, kind: BlockType) -> None:
    """Raise RefusedError for a type that llama.cpp does not read: the output would be no other file than the source."""
    runtime = codec(kind.name).runtime
    if runtime != LLAMA_CPP:
        raise RefusedError(
            f"{node.name} is {kind}, which only {runtime} reads, and no block of llama.cpp's holds its values",
            path=graph.checkpoint.path,
            hint="--outtype bf16 or f32, or a quantized type with --allow-requantize",
        )


def _kept(graph: ModelGraph, node: Node, options: TypeOptions, exact: tuple[str, ...]) -> tuple[BlockType, str]:
    """Return the type that a tensor has in GGUF where nothing asks for another, and why where it is not its own.

    `exact`: types of blocks that hold its values, where it is carried so.
    """
    source, derived = node.inputs[0].type, node.inputs[0].derived
    if node.layout.integers:
        return block_type(node.layout.integers), ""
    if node.role.always_f32 or math.prod(node.shape[:-1]) == 1:  # ggml counts a matrix of one row as a vector
        return block_type("F32"), "" if source.name == "F32" else "norms and vectors are F32 in GGUF"
    if node.role.plain or node.role.half:
        return _plain(node, source, options)
    if node.layout.widens:
        return block_type("F32"), "products of the source's values"
    if derived is not None:
        return _kept_of_derived(graph, node, derived, exact, options)
    rotated = source.quantized and not node.layout.block_safe
    if source.ggml_id is not None and not rotated:
        return source, ""
    repack = codec(source.name).repack
    if repack is not None and not rotated:
        return block_type(repack.target), f"today's form of {source}"
    target = block_type(options.expand)
    try:
        target.row_bytes(node.shape[-1])
    except BlockError as error:
        return block_type("F16"), f"F16: {error}"
    why = f"blocks of {source} cannot be turned" if rotated else f"GGUF has no counterpart of {source}"
    return target, f"{why}; --expand {options.expand}"


def _kept_of_derived(
    graph: ModelGraph, node: Node, derived: Derivation, exact: tuple[str, ...], options: TypeOptions
) -> tuple[BlockType, str]:
    """Return the same of a tensor of a quantized checkpoint."""
    source = node.inputs[0].type
    if exact and never_quantized(node.name, graph.architecture.name):
        return block_type("F32"), f"{derived.scheme}: the same values; such a tensor has no blocks in any file"
    if exact:
        return block_type(exact[0]), f"{derived.scheme}: the same levels and scales"
    if source.quantized and node.layout.block_safe and not options.dequantize:
        return source, ""
    if source == derived.natural:
        return source, ""
    if derived.merged:
        return derived.natural, f"computed, then rounded once: {derived.merged}"
    why = derived.inexact
    if not options.dequantize and derived.exact:
        why = "its layout takes blocks apart"
        if own_scales(graph, node) and not is_applied(graph.architecture.name, node.name):
            why = f"llama.cpp does not multiply {node.name} by its scale"
    return derived.natural, f"dequantized from {derived.scheme}" + f": {why}" * bool(why)


def _plain(node: Node, source: BlockType, options: TypeOptions) -> tuple[BlockType, str]:
    """Return the type of a tensor that runtimes take as a plain number only (`Role.plain`, `half`), and why."""
    requested = options.recipe().default
    name = source.name if requested == KEEP else requested
    usual, other = ("BF16", "F16") if node.role.half else ("F16", "F32")
    found = block_type(usual if name == usual else other)
    return found, "" if source == found else f"{usual} or {other} in every file"


def check_encoding(graph: ModelGraph, node: Node, target: BlockType, options: TypeOptions) -> None:
    """Check that a tensor may be encoded as `target`.

    Raises RefusedError where that rounds a second time, UnsupportedError where no encoder of ours writes the type.
    """
    source, derived = node.inputs[0].type, node.inputs[0].derived
    levels = derived.scheme if derived and derived.integers else source.name if source.quantized else None
    best = next(iter(exact_types(graph, node)), "")
    if target.quantized and levels and not options.allow_requantize:
        keep = "keep" if codec(source.name).runtime == LLAMA_CPP else "bf16"
        raise RefusedError(
            f"{node.name} is {levels} already: making {target} of it rounds a second time",
            path=graph.checkpoint.path,
            hint=f"--allow-requantize, or --outtype {keep}" + f", which carries it as {best}" * bool(best),
        )
    if codec(target.name).encode is None:
        raise UnsupportedError(f"{node.name}: no encoder for {target}", path=graph.checkpoint.path)


def facts_of(graph: ModelGraph) -> ModelFacts:
    """Return what mixtures depend on, from the keys that the model's GGUF file states."""
    name = graph.architecture.name
    declared: Mapping[str, object] = {
        **{key: value.data for key, value in graph.checkpoint.metadata.items() if isinstance(value, Value)},
        **{key: value.data for key, value, _ in graph.written()},
    }

    def count(key: str, absent: int = 0) -> int:
        value = declared.get(f"{name}.{key}", absent)
        first = value[0] if isinstance(value, tuple) and value else value
        return int(first) if isinstance(first, int | float) else absent

    heads = count("attention.head_count")
    return ModelFacts(
        architecture=name,
        n_layer=count("block_count"),
        n_head=heads,
        n_head_kv=count("attention.head_count_kv", heads),
        n_expert=count("expert_count"),
        n_layer_nextn=count("nextn_predict_layers"),
    )
