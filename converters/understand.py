"""From a Checkpoint to a ModelGraph: find the architecture and the dialect, then bind the tensors."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.model_graph.class_defaults.text_models import default_part
from ggferry.converters.model_graph.gguf_edits import architecture_name, projector_types, undescribed
from ggferry.converters.model_graph.graph import ModelGraph, bind
from ggferry.converters.model_graph.open_checkpoint import (
    architecture_named,
    architectures,
    architectures_of_classes,
    architectures_of_headers,
    open_checkpoint,
    projector_named,
    projectors_of_classes,
)
from ggferry.converters.model_graph.repeated_heads import is_tiled, untiled
from ggferry.converters.model_graph.tensor_roles import count_of_role, is_dropped
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.expressions import evaluate, solve
from ggferry.converters.unsupported_classes import refusal
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import architectures as class_names
from ggferry.formats.checkpoint_folder.sidecars import with_preprocessor
from ggferry.formats.errors import (
    DuplicateError,
    MissingError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
    UsageError,
)
from ggferry.formats.reader import Kind, kind_of

NEXT_TOKENS = "blk.{n}.nextn.eh_proj.weight"
"""What every block that predicts further tokens has, and no other (gguf-py `NEXTN_EH_PROJ`)."""
_MEGATRON = "decoder.final_layernorm.weight"
_OF_TRAINERS = (
    "transformer.wte.weight",
    "tok_embeddings.weight",
    "block.0.attn.qkv.weight",
    _MEGATRON,
    f"module.{_MEGATRON}",
    f"model.{_MEGATRON}",
)
"""Names of tensors by which `converters.trainer_names` is asked: of models by other names, no file of it is loaded."""
OF_WRAPPING_MODULES = (
    "module.",
    "base_model.model.",
    "model.model.",
    "model.lm_head.",
    "_orig_mod.",
    "_forward_module.",
)
"""Parts of names by which `formats.pytorch.nested_state` is asked, for the same reason."""
_OF_OTHER_LIBRARIES = ("flax", "hdf5", "keras", "orbax")
"""Containers whose names are never those of torch."""
CLIP = "clip"
"""What GGUF calls the architecture of every mmproj file, and clip.cpp that of CLIP itself."""
BOTH_ENCODERS = frozenset({"t.token_embd.weight", "v.patch_embd.weight"})
"""Tensors of CLIP's two encoders; an mmproj file has none that reads tokens."""

OLDER_MEANING = (
    "--mtp is deprecated in this meaning: in llama.cpp's converter it writes the blocks that predict further tokens "
    "alone, as --mtp-only does here; without an option they are carried where the checkpoint has them"
)


def understand(
    checkpoint: Checkpoint,
    hparams: Mapping[str, str] | None = None,
    vocab_only: bool = False,
    *,
    mtp: bool | None = None,
    rerank: str = "auto",
    fuse_qkv: bool = False,
    mtp_only: bool = False,
) -> ModelGraph:
    """Bind a checkpoint to its architecture, and return the graph.

    Args:
        checkpoint: A model file or folder that has been opened.
        hparams: `--hparam` overrides: GGUF key without the architecture → text.
        vocab_only: Whether to take the vocabulary alone and ignore the tensors, if there are any.
        mtp: Whether blocks that predict further tokens are part of the graph; None: where the checkpoint has them whole
            and GGUF a place for them. A GGUF file has them where it states so.
        rerank: Whether a causal model is a reranker, two rows of its output matrix a classifier: 'yes', 'no', or
            'auto', as what stands beside it says (`converters.reranking`).
        fuse_qkv: Whether queries, keys and values of a block become one tensor. In a GGUF file they are what they are.
        mtp_only: Whether the blocks that predict further tokens are the graph, without those of the decoder.

    Returns:
        The graph. A GGUF model that no table describes is returned with each tensor as its own role.

    Raises:
        MissingError: There is a vocabulary without tensors, and `vocab_only` is False: a model may have been cut there.
            Also for missing tensors and hparams.
        UnsupportedError: No architecture or dialect is known for the checkpoint.
        UnexpectedTensorError, DuplicateError, ShapeError, InconsistentError, TableError: See `bind`.
        UsageError: `mtp` is True for a model that GGUF has no place for such blocks of, or that has none; `rerank` of
            one that cannot be a reranker; `fuse_qkv` of one whose matrices cannot be joined.
    """
    if not checkpoint.tensors and not vocab_only:
        raise MissingError(
            "vocabulary without tensors: a vocab-only file, or a model cut exactly there",
            path=checkpoint.path,
            offset=checkpoint.nbytes,
            hint="--vocab-only converts the vocabulary",
        )
    training = kind_of(checkpoint.container) is Kind.TRAINING
    if training and any(sign in name for name in checkpoint.tensors for sign in OF_WRAPPING_MODULES):
        from ggferry.converters.trainer_names.model_class import unwrapped  # few models need it

        checkpoint = unwrapped(checkpoint)
    declared = checkpoint.header.get("metadata")  # of safetensors
    by_library = isinstance(declared, dict) and declared.get("format") in ("tf", "mlx")
    named_otherwise = by_library or "trainer" in checkpoint.header or checkpoint.container in _OF_OTHER_LIBRARIES
    named_otherwise = named_otherwise or any(".switch_" in name for name in checkpoint.tensors)  # re-saved from mlx-lm
    if training and (named_otherwise or any(name in checkpoint.tensors for name in _OF_TRAINERS)):
        from ggferry.converters.trainer_names.recognize import with_known_names  # few models need it

        checkpoint = with_known_names(checkpoint)
    whole = checkpoint
    checkpoint = replace(checkpoint, tensors={} if vocab_only else dict(checkpoint.tensors))
    checkpoint = replace(checkpoint, dropped=()) if vocab_only else _plain(checkpoint)
    if checkpoint.container == "gguf" and _table_of_file(checkpoint) is None:
        named = architecture_name(checkpoint)
        what = f"projector {projector_types(checkpoint)!r}" if named == CLIP else f"architecture {named!r}"
        if named == CLIP and any(name.startswith("t.") for name in checkpoint.tensors):
            what = "text encoder of CLIP alone, a file of clip.cpp, which is the only program that reads it"
        return undescribed(checkpoint, f"no table describes the {what}")
    if mtp_only and training:
        from ggferry.converters.next_token_blocks import bundled_dialect

        for draft in architectures().values():
            if own := bundled_dialect(checkpoint, draft):
                return bind(checkpoint, draft, own, hparams)
    if checkpoint.tensors:  # some dialects are known by the names of packed tensors
        whole = replace(whole, tensors={**whole.tensors, **checkpoint.tensors})
    architecture, dialect = _architecture_of(whole)
    if architecture.name == CLIP and training:
        checkpoint = replace(checkpoint, metadata=with_preprocessor(checkpoint.metadata, checkpoint.sidecars))
    if training and named_otherwise:
        from ggferry.converters.trainer_names.mlx_lm.roles import as_mlx_lm

        architecture = as_mlx_lm(architecture, dialect, checkpoint)
    if fuse_qkv or _has(checkpoint, ".attn_qkv.weight"):
        architecture = _fused(checkpoint, architecture, dialect)
    if mtp_only or _has(checkpoint, ".nextn."):
        from ggferry.converters.next_token_blocks import ALONE, alone, are_alone, only_alone

        if mtp_only and mtp is False:
            raise UsageError("--no-mtp and --mtp-only", path=checkpoint.path, expected="one of them")
        if are_alone(checkpoint, architecture):
            return bind(checkpoint, alone(architecture), dialect, hparams)
        if only_alone(architecture):
            dialect = ALONE
    trunk = architecture
    if mtp is not False and checkpoint.container != "gguf":
        architecture = _predicting(checkpoint, architecture, dialect, required=mtp is True or mtp_only)
    if architecture.dialect(dialect).repeated_kv:
        checkpoint = untiled(checkpoint, architecture.dialect(dialect))
    if dialect == "hf" and any(each.name == "reranker" for each in architecture.dialects):
        from ggferry.converters.reranking.recognize import explained, recognized  # few models need it

        found, notes = recognized(checkpoint, architecture, hparams, rerank, vocab_only)
        if found is not None:
            graph = bind(checkpoint, found.architecture, found.dialect, hparams, tensors=not vocab_only)
            return explained(graph, found.why)
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, *notes))
    elif rerank == "yes":
        raise UsageError(
            "--rerank yes is for causal models of Qwen3 and Qwen3-VL in Hugging Face's form",
            path=checkpoint.path,
            found=architecture.name,
        )
    try:
        graph = bind(checkpoint, architecture, dialect, hparams, tensors=not vocab_only)
    except (MissingError, ShapeError, DuplicateError, UnexpectedTensorError) as error:
        if checkpoint.container == "gguf" and isinstance(error, UnexpectedTensorError):
            return undescribed(checkpoint, f"{error.message} ({error.found})")
        if mtp is not None or mtp_only or architecture is trunk:
            raise
        graph = bind(checkpoint, trunk, dialect, hparams, tensors=not vocab_only)
        what = "not whole" if isinstance(error, MissingError) else "no blocks of this architecture"
        note = f"blocks that predict further tokens are left out, as they are {what}: {error.message} ({error.found})"
        return replace(graph, notes=(*graph.notes, note))
    if (mtp or mtp_only) and not graph.sizes.get("n_nextn"):
        raise UsageError("--mtp: the model states no blocks that predict further tokens", path=checkpoint.path)
    if mtp:
        graph = replace(graph, notes=(*graph.notes, OLDER_MEANING))
    if mtp_only:
        from ggferry.converters.next_token_blocks import without_decoder

        return without_decoder(graph)
    return graph


def _has(checkpoint: Checkpoint, part: str) -> bool:
    """Return whether the name of some tensor of a GGUF file has this part."""
    return checkpoint.container == "gguf" and any(part in name for name in checkpoint.tensors)


def _fused(checkpoint: Checkpoint, architecture: Architecture, dialect: str) -> Architecture:
    """Return the architecture with queries, keys and values in one tensor: as a GGUF file has them, or as asked for."""
    from ggferry.converters.schema.fused_attention import (  # few models need them
        check_fusing,
        fused,
        fused_where,
        was_fused,
    )

    if checkpoint.container != "gguf":
        check_fusing(architecture, architecture.dialect(dialect).column, checkpoint.path)
        return fused(architecture)
    if not was_fused(checkpoint, architecture):
        return architecture
    return fused(architecture, fused_where(checkpoint, architecture))


def _predicting(checkpoint: Checkpoint, architecture: Architecture, dialect: str, *, required: bool) -> Architecture:
    """Return the architecture with the blocks that predict further tokens, where the checkpoint has some.

    Raises UsageError where they are required and GGUF has no place for them.
    """
    able = "mtp" in (param.name for param in architecture.hparams)
    if required and not able:
        names = sorted(
            name for name, spec in architectures().items() if "mtp" in (param.name for param in spec.hparams)
        )
        raise UsageError(
            "--mtp and --mtp-only: blocks that predict further tokens are not carried for this architecture",
            found=architecture.name,
            expected=", ".join(names),
        )
    naming = architecture.dialect(dialect)
    found = count_of_role(NEXT_TOKENS, checkpoint, architecture, naming) if able else 0
    if not able or not (required or found):
        return architecture
    if naming.column not in architecture.role(NEXT_TOKENS).sources:
        raise UsageError(
            "--mtp: of this architecture a file holds the blocks that predict further tokens alone, or the decoder",
            found=architecture.name,
            hint="--mtp-only writes the blocks",
        )
    if architecture.further_fused:
        from ggferry.converters.schema.fused_attention import FURTHER, can_be_fused, fused

        architecture = fused(architecture, FURTHER) if can_be_fused(architecture) else architecture
    hparams = {param.name for param in architecture.hparams}
    fixed = {name: value for name, value in {"mtp": True, "nextn_found": found}.items() if name in hparams}
    return architecture.with_dialect(replace(naming, fixed={**naming.fixed, **fixed}))


def _plain(checkpoint: Checkpoint) -> Checkpoint:
    from ggferry.converters.prequantized.recognize import dequantized

    return dequantized(checkpoint)


def _architecture_of(checkpoint: Checkpoint) -> tuple[Architecture, str]:
    kind = kind_of(checkpoint.container)
    if kind is Kind.GGUF and (spec := _table_of_file(checkpoint)) is not None:
        return spec, "gguf"
    if kind is Kind.LEGACY:
        return _by_layout(checkpoint, architectures_of_headers())
    if kind is Kind.META:
        return _named("llama"), "meta"
    if kind is Kind.TRAINING:
        named = "architectures" in checkpoint.metadata
        if not checkpoint.tensors and not named and {"dim", "n_layers"} <= set(checkpoint.metadata):
            return _named("llama"), "mistral-format"  # params.json without weights, of which Meta's stand in .pth files
        return _by_class(checkpoint) if named else _by_marks(checkpoint)
    raise UnsupportedError(
        "no architecture is known for this container", path=checkpoint.path, found=checkpoint.container
    )


def _named(name: str) -> Architecture:
    spec = architecture_named(name)
    assert spec is not None
    return spec


def _table_of_file(checkpoint: Checkpoint) -> Architecture | None:
    """Return the table that describes a GGUF file: of its architecture or, of an mmproj file, of its projectors."""
    named = architecture_name(checkpoint)
    is_mmproj = named == CLIP and not checkpoint.tensors.keys() >= BOTH_ENCODERS
    return projector_named(projector_types(checkpoint)) if is_mmproj else architecture_named(named)


def _by_layout(checkpoint: Checkpoint, known: Mapping[str, Architecture]) -> tuple[Architecture, str]:
    """Return the architecture that owns the header layout, and its dialect.

    Where several own it, the one whose dialect repeats keys and values is taken if the tensors do so, too.
    """
    if checkpoint.architecture:
        spec = known[checkpoint.architecture]
        return spec, _legacy_dialect(checkpoint, spec)
    owners = [spec for spec in known.values() if checkpoint.layout in {layout.name for layout in spec.headers}]
    found = [(spec, _legacy_dialect(checkpoint, spec)) for spec in owners]
    plain = [(spec, name) for spec, name in found if not spec.dialect(name).repeated_kv]
    tiled = [(spec, name) for spec, name in found if is_tiled(checkpoint, spec.dialect(name))]
    return (tiled or plain)[0]


def _legacy_dialect(checkpoint: Checkpoint, spec: Architecture) -> str:
    """Return the GGML-era dialect that fits the file's header layout and the shapes of its tensors."""
    for dialect in spec.dialects:
        if dialect.source == "ggml" and (not dialect.layouts or checkpoint.layout in dialect.layouts):
            ref = checkpoint.tensors.get(dialect.shaped[0]) if dialect.shaped else None
            if not dialect.shaped or (ref is not None and _has_shape(checkpoint, ref.shape, dialect.shaped[1:])):
                return dialect.name
    message = "the header and the shapes of tensors fit no GGML-era form of this architecture"
    raise UnsupportedError(message, path=checkpoint.path, found=checkpoint.layout)


def _has_shape(checkpoint: Checkpoint, shape: tuple[int, ...], axes: tuple[str, ...]) -> bool:
    sizes = {name: value for name, value in checkpoint.header.items() if isinstance(value, int)}
    return shape == tuple(evaluate(expression, sizes) for expression in axes)


def _by_marks(checkpoint: Checkpoint) -> tuple[Architecture, str]:
    """Return the architecture and dialect whose marks are all names of tensors, where no configuration names a class.

    Marks of what Hugging Face's configurations describe tell the forms of one class apart, and not one class from
    another: only a container of the dialect's own name says by itself which it is. Raises MissingError where there is
    none.
    """
    for spec in architectures().values():
        dialect = _marked(checkpoint, spec)
        if dialect is not None and (spec.dialect(dialect).source != "hf" or dialect == checkpoint.container):
            return spec, dialect
    return _by_class(checkpoint)


def _marked(checkpoint: Checkpoint, spec: Architecture, bare: bool = False) -> str | None:
    """Return the dialect of `spec` whose marks and shapes the tensors have; None for no such dialect.

    `bare` says that the names lack their first part, as in a checkpoint of a base model alone.
    """
    for dialect in spec.dialects:
        marks = (mark.partition(".")[2] if bare else mark for mark in dialect.required_tensors)
        marked = all(_is_there(checkpoint, mark) for mark in marks)
        if (dialect.required_tensors or dialect.shapes) and marked and _fits(checkpoint, dialect.shapes):
            return dialect.name
    return None


def _fits(checkpoint: Checkpoint, shapes: tuple[str, ...]) -> bool:
    """Return whether one set of values for the names in `Dialect.shapes` gives the shapes of the tensors."""
    sizes: dict[str, int] = {}
    for line in shapes:
        pattern, _, text = line.partition(": ")
        ref = next((checkpoint.tensors[name] for name in fnmatch.filter(checkpoint.tensors, pattern)), None)
        expressions = text.split()
        if ref is None or len(ref.shape) != len(expressions):
            return False
        for expression, size in zip(expressions, ref.shape, strict=True):
            try:
                answer = solve(expression, size, sizes)
                sizes |= [answer] if answer else []
                if evaluate(expression, sizes) != size:
                    return False
            except (KeyError, ValueError):
                return False
    return True


def _is_there(checkpoint: Checkpoint, mark: str) -> bool:
    """Return whether a tensor has this name; a mark may be a shell pattern."""
    return mark in checkpoint.tensors or ("*" in mark and bool(fnmatch.filter(checkpoint.tensors, mark)))


def _listed(name: str, spec: Architecture, dialect: Dialect, by_class: Mapping[str, Architecture]) -> bool:
    """Return whether a class leads to this dialect where there are no tensors to tell.

    It leads to the architecture that lists it, or to one that takes it where a key says so, in a dialect that need not
    lack any tensor.
    """
    return (by_class.get(name, spec) is spec or bool(dialect.unless)) and not dialect.forbidden_tensors


def _by_class(checkpoint: Checkpoint) -> tuple[Architecture, str]:
    """Return the architecture of the class that config.json names, and the dialect.

    The dialect is the one that lists the class, else the one whose marks the tensors have, else 'hf'. Raises
    MissingError without a class, and UnsupportedError, listing the known classes, for any other.
    """
    named = class_names(checkpoint.metadata, checkpoint.path)
    known = architectures_of_classes(tuple(named))
    by_class = {name: spec for spec in known.values() for name in spec.hf_classes}
    for name in named:
        matching = _matching_dialect(name, checkpoint, known, by_class)
        if matching is not None:
            return matching
        halves = [one for spec in known.values() for one in spec.dialects if one.types and name in one.classes]
        if halves:
            raise UnsupportedError(
                f"text backbone of a {name}",
                path=checkpoint.path,
                found=text_type(checkpoint.metadata, halves[0]),
                expected=", ".join(sorted({kind for half in halves for kind in half.types})),
            )
        if name in by_class:
            spec = by_class[name]
            return spec, _marked(checkpoint, spec) or _marked(checkpoint, spec, bare=True) or "hf"
    raise refusal(named, checkpoint, architectures())


def _matching_dialect(
    name: str, checkpoint: Checkpoint, known: Mapping[str, Architecture], by_class: Mapping[str, Architecture]
) -> tuple[Architecture, str] | None:
    """Return the architecture and the dialect that lists the class and fits the model best; None for none."""
    matching = [
        (spec, dialect)
        for spec in known.values()
        for dialect in spec.dialects
        if name in dialect.classes
        and (not dialect.types or text_type(checkpoint.metadata, dialect) in dialect.types)
        and not (dialect.unless and checkpoint.metadata.get(dialect.unless) is True)
        and (checkpoint.tensors or dialect.types or _listed(name, spec, dialect, by_class))
        and not any(_is_there(checkpoint, tensor) for tensor in dialect.forbidden_tensors)
    ]
    if not matching:
        return None
    spec, dialect = max(matching, key=lambda found: len(found[1].forbidden_tensors))
    return spec, dialect.name


def understand_projector(checkpoint: Checkpoint, hparams: Mapping[str, str] | None = None) -> ModelGraph | None:
    """Bind the vision or audio encoder of a training checkpoint, which an mmproj file holds.

    Args:
        checkpoint: The model.
        hparams: `--hparam` overrides whose keys begin with 'clip.'.

    Returns:
        The graph; None where no table describes the projector of the model's class, or where the checkpoint holds no
        tensors of that half.

    Raises what `understand` raises.
    """
    if kind_of(checkpoint.container) is not Kind.TRAINING or not checkpoint.tensors:
        return None
    found = _projector_of(checkpoint)
    if found is None:
        return None
    plain = _plain(replace(checkpoint, tensors=dict(checkpoint.tensors)))
    plain = replace(plain, metadata=with_preprocessor(plain.metadata, plain.sidecars))
    if not _has_half(plain, *found):
        return None
    from ggferry.converters.model_graph.class_defaults.projectors import with_class_defaults

    spec = with_class_defaults(*found, plain.metadata, plain.path)
    return bind(plain, spec, found[1], hparams)


def _projector_of(checkpoint: Checkpoint) -> tuple[Architecture, str] | None:
    declared = checkpoint.metadata.get("architectures")
    named = [name for name in declared if isinstance(name, str)] if isinstance(declared, list) else []
    known = projectors_of_classes(named)
    by_class = {name: spec for spec in known.values() for name in spec.hf_classes}
    for name in named:
        matching = _matching_dialect(name, checkpoint, known, by_class)
        if matching is not None:
            return matching
        if name in by_class:
            return by_class[name], _marked(checkpoint, by_class[name]) or "hf"
    return None


def _has_half(checkpoint: Checkpoint, architecture: Architecture, dialect: str) -> bool:
    """Return whether some tensor is not of the text model: a class may be kept where that half was left out."""
    return any(not is_dropped(name, architecture.dialect(dialect)) for name in checkpoint.tensors)


def text_type(config: Mapping[str, Any], dialect: Dialect) -> str:
    """Return the model type that a configuration states for its text part, or for itself where it has none.

    Where none is stated, it is what transformers takes for the class, or else 'llama'.
    """
    part = config.get(dialect.config_section)
    inner = part if isinstance(part, Mapping) else config
    listed = inner.get("architectures") if inner is part else None
    kind = inner.get("model_type") or (listed[0] if isinstance(listed, list) and listed else None)
    return kind if isinstance(kind, str) else default_part(config, dialect.config_section) or "llama"


def graph_of(
    path: str, hparams: Mapping[str, str] | None = None, arch: str | None = None, *, rerank: str = "auto"
) -> ModelGraph:
    """Return a file bound to its architecture, for the forward pass. The caller closes its checkpoint."""
    checkpoint = open_checkpoint(path, arch)
    try:
        return understand(checkpoint, hparams, rerank=rerank)
    except BaseException:
        checkpoint.close()
        raise
