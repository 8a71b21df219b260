"""From a path to a Checkpoint: every reader, every architecture's header layouts, and nothing heavier.

Kept apart from `understand` so that `ggferry inspect` needs no graph, no tokenizer and no numpy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from ggferry.converters.schema.architecture import Architecture
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.modules import with_dense
from ggferry.formats.errors import CorruptError, UsageError
from ggferry.formats.json_files.text import load_object
from ggferry.formats.memory_cap import limited
from ggferry.formats.reader import HeaderLayout, Kind, Reader, find_reader, kind_of
from ggferry.support.registry import mentioning, scan, single

_TABLES = "ggferry.converters.architectures"
_PROJECTORS = "ggferry.converters.projectors"
_FEW = 8
GENERATION = "generation_config"


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every architecture by name."""
    return {spec.name: spec for spec in scan(_TABLES, "SPEC")}


def architectures_of_classes(names: Sequence[str]) -> Mapping[str, Architecture]:
    """Return the architectures by name that name these classes of config.json; no other table is imported."""
    if len(names) > _FEW:  # each is looked for in every text
        return architectures()
    return {spec.name: spec for spec in mentioning(_TABLES, "SPEC", *names)}


def architectures_of_headers() -> Mapping[str, Architecture]:
    """Return the architectures by name that have GGML-era headers; no other table is imported."""
    return {spec.name: spec for spec in mentioning(_TABLES, "SPEC", "headers=") if spec.headers}


@cache
def projectors() -> Mapping[str, Architecture]:
    """Return every table of an mmproj file, of multimodal models, by its projector types."""
    return {spec.projector: spec for spec in scan(_PROJECTORS, "SPEC")}


def projectors_of_classes(names: Sequence[str]) -> Mapping[str, Architecture]:
    """Return the tables of mmproj files by projector type that name these classes; no other table is imported."""
    if len(names) > _FEW:
        return projectors()
    return {spec.projector: spec for spec in mentioning(_PROJECTORS, "SPEC", *names)} if names else {}


def architecture_named(name: str) -> Architecture | None:
    """Return the architecture that GGUF calls `name`; None where no table describes it.

    Its module is called like it, so the other tables need not be imported.
    """
    spec = single(_TABLES, name.replace("-", "_"), "SPEC")
    return spec if isinstance(spec, Architecture) and spec.name == name else architectures().get(name)


def projector_named(types: str) -> Architecture | None:
    """Return the table of mmproj files of these projector types, found as `architecture_named` finds its own."""
    spec = single(_PROJECTORS, types.replace(".", "_").replace("+", "_"), "SPEC")
    return spec if isinstance(spec, Architecture) and spec.projector == types else projectors().get(types)


def header_layouts() -> tuple[HeaderLayout, ...]:
    """Return the GGML-era header layouts of all architectures, for the readers. Several may share a layout."""
    return tuple(
        {layout.name: layout for spec in architectures_of_headers().values() for layout in spec.headers}.values()
    )


def open_checkpoint(path: str, arch: str | None = None, config: str | None = None) -> Checkpoint:
    """Open `path` with the reader that recognizes it.

    Links are followed within the model's folder. A path of the class `local_files.Named` was chosen by a person and may
    itself be a link to anywhere, unlike the files next to it.

    Args:
        path: A file or a folder.
        arch: The architecture of a GGML-era file, which does not state it.
        config: A config.json or its folder: of a training checkpoint without one, or for what a GGML-era header leaves
            open.

    Returns:
        The checkpoint; the caller closes it.

    Raises UsageError where `arch` or `config` does not apply, and another of `formats.errors` for files that cannot be
    read.
    """
    with limited(path):
        return _open(path, arch, config)


def _open(path: str, arch: str | None, config: str | None) -> Checkpoint:
    reader, match = find_reader(path)
    if kind_of(match.container) is Kind.PACKED:
        return _open_packed(reader, path, arch, config)
    if arch is None and config is None:
        asks = kind_of(match.container) in (Kind.LEGACY, Kind.META)  # of Meta's, how parts are joined
        return _described(reader.open(path, header_layouts() if asks else ()))
    if arch is None and config is not None and kind_of(match.container) is Kind.TRAINING:
        from ggferry.formats.checkpoint_folder.sidecars import configured

        return _described(configured(reader.open(path, ()), config))
    if kind_of(match.container) is not Kind.LEGACY:
        raise _not_for(arch, path, match.container)
    named, layouts = (None, header_layouts()) if arch is None else _layouts_of(arch)
    checkpoint = reader.open(path, layouts)
    return replace(checkpoint, architecture=named, metadata=load_object(_config(config)) if config else {})


def _open_packed(reader: Reader, path: str, arch: str | None, config: str | None) -> Checkpoint:
    """Open what is inside a packed file; only then it is known which options are for it."""
    named, layouts = (None, header_layouts()) if arch is None else _layouts_of(arch)
    checkpoint = reader.open(path, layouts)
    kind = kind_of(checkpoint.container)
    if kind is Kind.LEGACY:
        return replace(checkpoint, architecture=named, metadata=load_object(_config(config)) if config else {})
    if arch is None and (config is None or kind is Kind.TRAINING):
        if config is not None:
            from ggferry.formats.checkpoint_folder.sidecars import configured

            checkpoint = configured(checkpoint, config)
        return _described(checkpoint)
    checkpoint.close()
    raise _not_for(arch, path, checkpoint.container)


def _described(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with what files beside it say, and with the class that its model type decides."""
    checkpoint = with_dense(_without_broken(checkpoint))
    if kind_of(checkpoint.container) is not Kind.TRAINING or "architectures" in checkpoint.metadata:
        return checkpoint
    from ggferry.converters.model_graph.class_defaults.class_of_type import with_class
    from ggferry.converters.trainer_names.recognize import is_of_trainer

    return checkpoint if is_of_trainer(checkpoint) else with_class(checkpoint)


def _without_broken(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint without a generation_config.json that holds no JSON object, which no model needs.

    transformers passes over it, too (5.17, `GenerationMixin`: an OSError means that there is none).
    """
    path = checkpoint.sidecars.get(GENERATION)
    if path is None:
        return checkpoint
    try:
        load_object(path)
    except CorruptError as error:
        kept = {role: file for role, file in checkpoint.sidecars.items() if role != GENERATION}
        lost = "nothing of it is read, neither settings for sampling nor further ends of a text"
        note = f"{os.path.basename(path)} is passed over ({error.message}): {lost}"
        return replace(checkpoint, sidecars=kept, notes=(*checkpoint.notes, note))
    return checkpoint


def _not_for(arch: str | None, path: str, container: str) -> UsageError:
    flag = "--arch" if arch else "--hf-config"
    files = "GGML-era files" + ("" if arch else " and training checkpoints")
    return UsageError(f"{flag} is for {files}", path=path, found=container)


def _layouts_of(arch: str) -> tuple[str, tuple[HeaderLayout, ...]]:
    """Return the architecture and the header layouts that are called so: an architecture's, or one of them."""
    legacy = {name: spec.headers for name, spec in architectures_of_headers().items()}
    if arch in legacy:
        return arch, legacy[arch]
    for name, layouts in legacy.items():
        for layout in layouts:
            if layout.name == arch:
                return name, (layout,)
    raise UsageError("--arch", found=arch, expected=", ".join(sorted(legacy)))


def _config(path: str) -> str:
    return os.path.join(path, "config.json") if os.path.isdir(path) else path
