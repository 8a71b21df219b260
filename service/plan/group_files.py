"""Walk an archive and group its files: which of them are one model, and which sidecar files belong to it.

This uses names and first bytes alone; nothing that could be hostile is opened here. Every file ends in exactly one
group.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ggferry.formats.checkpoint_folder import folder as folders
from ggferry.formats.checkpoint_folder.shard_index import read_index
from ggferry.formats.checkpoint_folder.sidecars import beside_or_above, sidecar_names, sidecars, vocabulary_names
from ggferry.formats.errors import AmbiguousError, GgferryError, NotFoundError, RefusedError
from ggferry.formats.files.local_files import read_start
from ggferry.formats.files.opened_files import unrecorded
from ggferry.formats.files.partial_names import is_partial
from ggferry.formats.files.sources import open_source
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.json_files.text import load_object
from ggferry.formats.ollama.manifest import model_layer, read_manifest
from ggferry.formats.ollama.store import MANIFESTS, located
from ggferry.formats.packed.kinds import TAR, ZIP, kind_of_packing, unpacked_name
from ggferry.formats.reader import (
    HEAD_BYTES,
    Kind,
    container_by_magic,
    describe,
    files_beside,
    kind_of,
    model_suffixes,
    weights_names,
)
from ggferry.service.storage.broker import revive
from ggferry.service.storage.stores import LINK, Found

PACKED = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst")
ARCHIVES = ((".7z", "a 7-Zip archive"), (".rar", "a RAR archive"))
NO_MODELS = ((".receipt.json", "a receipt of ggferry"), (".partial", "an unfinished file of another program"))
_PART = re.compile(r"(?P<base>.+)\.(?P<number>[1-9]\d?)", re.DOTALL)

# A group's kind, and what is done with it.
FILE, PARTS, SHARDS, FOLDER, ADAPTER = "file", "parts", "shards", "folder", "adapter"
OTHER, ARCHIVE, FORM, BROKEN = "other", "archive", "other form", "broken"
MODELS = (FILE, PARTS, SHARDS, FOLDER, ADAPTER)


@dataclass(frozen=True, slots=True)
class Group:
    """Files that belong together.

    Attributes:
        kind: What it is.
        source: The path that a reader is given.
        files: Paths of the weights.
        beside: Paths of the sidecar files.
        reason: Why it is not a model.
        error: Why it cannot be one.
        tokenizer_model: For a legacy file, the tokenizer.model in its folder.
        config: For a legacy file, the config.json in its folder.
        base: For an adapter, the folder of the model it names.
        packed: Whether it is a compressed file or an archive, in which there may be no model at all.
    """

    kind: str
    source: str
    files: tuple[str, ...]
    beside: tuple[str, ...] = ()
    reason: str = ""
    error: GgferryError | None = None
    tokenizer_model: str | None = None
    config: str | None = None
    base: str | None = None
    packed: bool = False


@dataclass
class Tree:
    """All listed files, by path and, in each folder, by name.

    Paths are local; those of remote files are in a mirror.
    """

    files: dict[str, Found] = field(default_factory=dict)
    folders: dict[str, dict[str, Found]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, path: str, found: Found) -> None:
        """Add a file."""
        self.files[path] = found
        folder, name = os.path.split(path)
        self.folders[folder][name] = found


def groups(tree: Tree) -> list[Group]:
    """Return the groups into which the files of the tree fall, in the order of their paths."""
    found = _of_ollama(tree)
    stored = {path for group in found for path in (*group.files, *group.beside)}
    for folder in sorted(tree.folders):
        names = tree.folders[folder]
        if stored:
            names = {name: each for name, each in names.items() if os.path.join(folder, name) not in stored}
        found += _Folder(folder, names).groups()
    used = {path for group in found for path in group.beside if path not in tree.files or tree.files[path].bytes >= 0}
    kept = [
        group for group in found if not set(group.files) <= used
    ]  # weights, too, where a module of a model has them
    return with_bases(sorted(kept, key=lambda group: (group.source, group.kind)))


def _of_ollama(tree: Tree) -> list[Group]:
    """Return the models of Ollama's stores in the tree: a manifest each, with the blobs that it names beside it."""
    found = []
    for path in tree.files:
        place = located(path) if MANIFESTS in path else None
        if place is None:
            continue
        try:
            manifest = read_manifest(path)
            weights = model_layer(manifest).path(place[0])
        except GgferryError:
            continue  # what is wrong is said of the manifest as of any other file
        config = () if manifest.config is None else (manifest.config,)
        blobs = {layer.path(place[0]) for layer in (*manifest.layers, *config)} & tree.files.keys() - {weights}
        if weights in tree.files:
            found.append(Group(FILE, path, (weights,), (path, *sorted(blobs))))
    return found


class _Folder:
    """One folder, whose names are taken away as groups are found."""

    def __init__(self, path: str, names: Mapping[str, Found]) -> None:
        self.path, self.names = path, names
        self.left = dict(names)
        self.unreadable = {name: found.trouble for name, found in names.items() if found.trouble}

    def groups(self) -> Iterator[Group]:
        for steps in (self._odd, self._training, self._gguf_shards, self._parts, self._rest):
            yield from map(self._whole, steps())

    def _whole(self, group: Group) -> Group:
        """Refuse a model with a sidecar file that a reader would look for and that cannot be read.

        It is not converted without that file.
        """
        if not self.unreadable or group.kind not in MODELS:
            return group
        looked_for = sidecar_names() if group.kind in (FOLDER, ADAPTER) else ("tokenizer.model", "config.json")
        for name, trouble in self.unreadable.items():
            if name in looked_for or name.endswith(folders.INDEX):
                error = revive(trouble)
                error.message = f"{name} beside it cannot be read: {error.message}"
                return Group(BROKEN, group.source, group.files, error=error)
        return group

    def _take(self, paths: Iterable[str]) -> tuple[str, ...]:
        taken = tuple(paths)
        for path in taken:
            self.left.pop(os.path.basename(path), None)
        return taken

    def _in(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _odd(self) -> Iterator[Group]:
        """Yield what is no file, or not in this tree."""
        for name, found in list(self.left.items()):
            if found.trouble:
                yield Group(BROKEN, self._in(name), self._take([self._in(name)]), error=revive(found.trouble))
            elif found.version == LINK:
                yield self._link_out(self._in(name), found.reason)
            elif found.bytes < 0:
                yield Group(OTHER, self._in(name), self._take([self._in(name)]), reason=found.reason)

    def _link_out(self, path: str, target: str) -> Group:
        self._take([path])
        if not path.lower().endswith(model_suffixes()):
            return Group(OTHER, path, (path,), reason=f"link leads out of the tree, to {target}")
        hint = "plan the folder it leads into too, or put the file itself in the link's place"
        error = RefusedError("link leads out of the tree", path=path, found=target, hint=hint)
        return Group(BROKEN, path, (path,), error=error)

    def _is_odd(self, path: str) -> bool:
        found = self.names.get(os.path.basename(path))
        return found is not None and found.bytes < 0 and os.path.dirname(path) == self.path

    # --- training checkpoints ---

    def _training(self) -> Iterator[Group]:
        if not any(name.lower().endswith(folders.weights_suffixes()) for name in self.left):
            return
        try:
            forms = folders.find_forms(self.path) or [w for w in [folders.find_weights(self.path)] if w]
        except AmbiguousError:
            return  # several single files: each stands for itself
        except GgferryError as error:
            yield self._broken(error)
            return
        model: Group | None = None
        for weights in forms:
            try:
                group = self._weights(weights, preferred=model is None)
            except GgferryError as error:
                yield self._broken(error, weights)
                continue
            if group is None:
                continue
            if group.kind == FOLDER and model is not None:
                reason = f"another form of the model in {os.path.basename(model.files[0])}"
                group = Group(FORM, group.source, group.files, reason=reason)
            model = model or (group if group.kind == FOLDER else None)
            yield group

    def _weights(self, weights: folders.Weights, preferred: bool) -> Group | None:
        """Return the model of these files; None where its only file is not one and gets a line of its own."""
        files, index = weights.files, weights.index
        if index is not None:
            files = read_index(index).files
        adapter = os.path.basename(index or files[0]).startswith("adapter_model")
        small = beside_or_above(weights)[0] if _is_of_trainer(weights) else sidecars(weights)
        beside = tuple(sorted({*small.values(), *([index] if index else [])}))
        alone = len(files) == 1 and not index
        source = self.path if preferred and not adapter else (index or files[0])
        if alone and not adapter and "config" not in sidecars(weights) and not _is_metas(weights):
            source = files[0]  # a lone file without a configuration stands for itself
        if self._is_odd(source):
            return None
        inside = [path for path in beside if os.path.dirname(path) == self.path]
        self._take(files)
        self._take(inside)
        return Group(ADAPTER if adapter else FOLDER, source, files, beside)

    def _broken(self, error: GgferryError, weights: folders.Weights | None = None) -> Group:
        """Return the group of a model whose files do not fit together; it takes every file named like weights."""
        files = [self._in(name) for name in sorted(self.left) if folders.is_weights_name(name)]
        if weights is not None and weights.index and weights.index not in files:
            files.append(weights.index)
        return Group(BROKEN, self.path, self._take(files), error=error)

    # --- GGML and GGUF in several files ---

    def _gguf_shards(self) -> Iterator[Group]:
        models = defaultdict(list)
        for name in sorted(self.left):
            if (shard := shard_of(name)) is not None and shard.count > 1:
                models[shard.stem, shard.count].append(self._in(name))
        for paths in models.values():
            yield Group(SHARDS, paths[0], self._take(paths))

    def _parts(self) -> Iterator[Group]:
        models: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for name in self.left:
            match = _PART.fullmatch(name)
            if match and is_legacy(head_of(self._in(name))):
                models[match["base"]].append((int(match["number"]), name))
        for base, numbered in sorted(models.items()):
            parts = [self._in(name) for _, name in sorted(numbered)]
            if base in self.left:
                paths = [self._in(base), *parts]
                yield self._legacy(PARTS, self._take(paths))
            else:
                error = NotFoundError(
                    "the first part of this model is missing",
                    path=parts[0],
                    expected=base,
                    hint="fetch it: a model is converted whole or not at all",
                )
                yield Group(BROKEN, parts[0], self._take(parts), error=error)

    def _legacy(self, kind: str, paths: tuple[str, ...]) -> Group:
        """Return a model of the GGML era with the sidecar files it may need."""
        model, config = (self._in(name) if name in self.names else None for name in ("tokenizer.model", "config.json"))
        beside = tuple(path for path in (model, config) if path)
        return Group(kind, paths[0], paths, beside, tokenizer_model=model, config=config)

    # --- the rest, a file at a time ---

    def _rest(self) -> Iterator[Group]:
        for name in sorted(self.left):
            path, lower = self._in(name), name.lower()
            if is_partial(name):
                yield Group(OTHER, path, (path,), reason="the unfinished output of a conversion")
                continue
            if name in vocabulary_names():
                yield Group(OTHER, path, (path,), reason="not a model: the tokenizer of one")
                continue
            for endings, kind in ((NO_MODELS, OTHER), (ARCHIVES, ARCHIVE)):
                words = next((words for ending, words in endings if lower.endswith(ending)), None)
                if words:
                    reason = f"{words}: unpack it first" if kind == ARCHIVE else words
                    yield Group(kind, path, (path,), reason=reason)
                    break
            else:
                yield self._single(path, lower)

    def _single(self, path: str, lower: str) -> Group:
        try:
            head = _head_of(path)
        except GgferryError as error:
            return Group(BROKEN, path, (path,), error=error)
        if lower.endswith(model_suffixes()) or container_by_magic(head) is not None:
            if is_legacy(head):
                return self._legacy(FILE, (path,))
            return Group(FILE, path, (path,), self._beside(path, head))
        if kind := kind_of_packing(head, path):
            return self._packed(path, kind)
        if lower.endswith(PACKED):
            return Group(ARCHIVE, path, (path,), reason="named like an archive or a compressed file, and is none")
        words = "an empty file" if not head else describe(head, path)
        return Group(OTHER, path, (path,), reason=f"not a model: {words}")

    def _packed(self, path: str, kind: str) -> Group:
        """Return the group of a compressed file or an archive: a model, where it can be one by its name."""
        inner = unpacked_name(path).lower()
        whole = kind in (TAR, ZIP) or inner.endswith((".tar", ".zip"))
        if not whole and not inner.endswith(model_suffixes()):
            return Group(ARCHIVE, path, (path,), reason="a compressed file: unpack it first")
        names = () if whole or inner.endswith(".gguf") else sidecar_names()
        return Group(FILE, path, (path,), tuple(self._in(name) for name in names if name in self.names), packed=True)

    def _beside(self, path: str, head: bytes) -> tuple[str, ...]:
        try:
            size = _size_of(path)
        except GgferryError:  # it is gone: what reads it says so
            return ()
        return tuple(self._in(name) for name in files_beside(head, path, size) if name in self.names)


def is_legacy(head: bytes) -> bool:
    """Return whether a file with these first bytes is of the GGML era."""
    container = container_by_magic(head)
    return container is not None and container.kind is Kind.LEGACY


def _is_of_trainer(weights: folders.Weights) -> bool:
    """Return whether a trainer wrote the weights into a folder of their own, perhaps without the small files."""
    return any(one.container == weights.container and one.further for one in weights_names())


def _is_metas(weights: folders.Weights) -> bool:
    return kind_of(weights.container) is Kind.META


def head_of(path: str) -> bytes:
    """Return the first bytes of a file (of a remote file, those in its mirror); none where it cannot be read."""
    try:
        return _head_of(path)
    except GgferryError:
        return b""


def _size_of(path: str) -> int:
    with unrecorded(), closing(open_source(path)) as source:
        return source.size


def _head_of(path: str) -> bytes:
    with unrecorded():
        return read_start(path, HEAD_BYTES)


# --- adapters ------------------------------------------------------------------------------------------------------


def with_bases(found: Sequence[Group]) -> list[Group]:
    """Add to adapters the folder of the base they name, where exactly one model of the archive has that name."""
    homes: dict[str, list[str]] = defaultdict(list)
    for group in found:
        if group.kind == FOLDER and os.path.isdir(group.source):
            homes[os.path.basename(group.source).lower()].append(group.source)
    return [replace(group, base=_base(group, homes)) if group.kind == ADAPTER else group for group in found]


def _base(group: Group, homes: Mapping[str, Sequence[str]]) -> str | None:
    config = next((path for path in group.beside if os.path.basename(path) == "adapter_config.json"), None)
    if config is None:
        return None
    try:
        named = load_object(config).get("base_model_name_or_path")
    except GgferryError:
        return None  # opening the adapter says what is wrong
    near = homes.get(os.path.basename(str(named or "").rstrip("/" + os.sep)).lower(), ())
    return near[0] if len(near) == 1 else None
