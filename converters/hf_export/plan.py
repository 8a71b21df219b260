"""The plan of a Hugging Face folder: its tensors, its shards and its small files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ggferry
from ggferry.converters.conversion_plan.output_metadata import assemble
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.hf_export.known_classes import TEXT, KnownClass
from ggferry.converters.hf_export.model_card import model_card
from ggferry.converters.hf_export.pictures import clip_pictures
from ggferry.converters.hf_export.shards import INDEX, Entry, Packing, Shards, plan_shards
from ggferry.converters.hf_export.source_tensors import SourceTensor
from ggferry.converters.hf_export.tensors_back import BackPlan, plan_back
from ggferry.converters.hf_export.tokenizer_files import as_json, generation, special_ids, tokenizer_files
from ggferry.converters.metadata.beside import FOLDER_RECEIPT
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.files.find import NO_SPACE_PREFIX
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import PREPROCESSOR
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.records import dataclass

_MAP = "vocabulary_map"
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """What the user asked for.

    Attributes:
        hparams: Values of hyper-parameters by key.
        vocab: Where the vocabulary comes from.
        dtype: 'f32', 'f16' or 'bf16' for all weights; None keeps plain types and makes float32 of quantized ones.
        max_shard_size: Bytes of weights in a file.
        model_name: Instead of the source's.
        metadata: general.* values for the model card.
    """

    hparams: Mapping[str, str]
    vocab: VocabOptions
    dtype: str | None
    max_shard_size: int
    model_name: str | None
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Form:
    """For which library a folder is written.

    Attributes:
        name: What its files say that they are for.
        library: The library, as model cards name it.
        pack: Returns the matrices that are written as several tensors, by name; None: none are.
        settings: What config.json states besides, by what it states and the packed matrices.
        notes: What the user should know.
    """

    name: str = "pt"
    library: str = "transformers"
    pack: Callable[[ModelGraph, Sequence[SourceTensor]], Mapping[str, Packing]] | None = None
    settings: Callable[[JSONObject, Mapping[str, Packing]], JSONObject] | None = None
    notes: Callable[[BackPlan, Mapping[str, Packing]], Iterable[str]] | None = None


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """Everything that will be written.

    Attributes:
        back: Class, configuration and tensors.
        shards: Where the tensors go.
        texts: The small files, by name.
        tokenizer: The vocabulary; None where none is written.
        notes: What the user should know.
    """

    back: BackPlan
    shards: Shards
    texts: Mapping[str, bytes]
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]

    @property
    def graph(self) -> ModelGraph:
        """The source."""
        return self.back.graph

    @property
    def bytes_written(self) -> int:
        """Bytes of all weights."""
        return self.shards.nbytes

    @property
    def bytes_of_files(self) -> int:
        """Bytes of all files, without the receipt's."""
        return sum(self.shards.sizes.values()) + sum(map(len, self.texts.values()))


def plan_folder(options: FolderOptions, checkpoint: Checkpoint, form: Form | None = None) -> FolderPlan:
    """Return what will be written, without reading tensor data. Raises one of `formats.errors`."""
    form = form or Form()
    graph = understand(checkpoint, options.hparams, rerank="no")  # a folder keeps the whole output matrix
    back = plan_back(graph)
    tokenizer = load_tokenizer(checkpoint, graph.sizes.get("n_vocab", 0), options.vocab)
    packings = form.pack(graph, back.tensors) if form.pack else {}
    shards = plan_shards(back.tensors, options.dtype, options.max_shard_size, packings, form.name)
    entries, _ = assemble(graph, (), tokenizer, Options(), options.model_name, options.metadata)
    general = {key.removeprefix("general."): entry.value.data for key, entry in entries.items()}
    settings = form.settings(dict(back.config), packings) if form.settings else {}
    texts = _texts(back, shards, tokenizer, general, checkpoint.path, form.library, settings)
    none = () if tokenizer else (f"no vocabulary: the folder has no tokenizer{_unmapped(back.known)}",)
    values = tuple(
        f"{entry.tensor.name} and all that went through {layout} cannot be undone bit for bit"
        for layout, entry in _inexact(shards).items()
    )
    own = form.notes(back, packings) if form.notes else ()
    otherwise = replace(graph, dialect=back.dialect).known_differences("transformers", graph.sizes.get("n_ctx") or 0)
    notes = (*checkpoint.notes, *graph.notes, *back.notes, *otherwise, *none, *values, *own)
    notes = tuple(dict.fromkeys(notes))
    return FolderPlan(back, shards, texts, tokenizer, notes)


def _inexact(shards: Shards) -> dict[str, Entry]:
    """Return the layouts that change values, each with the first tensor that has it."""
    found: dict[str, Entry] = {}
    for entry in shards.entries:
        if not entry.tensor.lossless:
            nodes = entry.tensor.nodes
            own = [type(node.layout).__name__ for node in nodes if not node.layout.lossless]
            found.setdefault((*own, *entry.tensor.layouts)[-1], entry)
    return found


def _texts(
    back: BackPlan,
    shards: Shards,
    tokenizer: Tokenizer | None,
    general: Mapping[str, Any],
    path: str,
    library: str,
    settings: JSONObject,
) -> dict[str, bytes]:
    config = {**back.config, "torch_dtype": _TYPES.get(_main_type(shards), "float32"), **settings}
    pictures = config.pop(PREPROCESSOR, None)
    files: dict[str, bytes] = {}
    part = back.known.config_section or (TEXT if TEXT[:-1] in config else "")
    holder = config[part[:-1]] if part else config
    holder |= {name: value for name, value in _ids(back.known, tokenizer).items() if holder.get(name) is None}
    if tokenizer is not None:
        _check_space_prefix(back.known, tokenizer, path)
        files = tokenizer_files(tokenizer, path)
        files["generation_config.json"] = as_json(generation(tokenizer))
    if pictures is not None:
        files["preprocessor_config.json"] = as_json(clip_pictures(pictures, config["vision_config"]["image_size"]))
    origin = f"Converted by ggferry {ggferry.__version__} from `{os.path.basename(path)}`; see `{FOLDER_RECEIPT}`."
    index = shards.index()
    return {
        "config.json": as_json(config),
        **files,
        "README.md": model_card(general, origin, library),
        **({INDEX: index} if index else {}),
    }


def _check_space_prefix(known: KnownClass, tokenizer: Tokenizer, path: str) -> None:
    """Raise UnsupportedError for a vocabulary with a space before the text, where the class's tokenizer puts none."""
    spaced = tokenizer.model == "llama" and tokenizer.flags.get("add_space_prefix", True)
    if spaced and tokenizer.huggingface_json is None and known.model_type.startswith(NO_SPACE_PREFIX):
        raise UnsupportedError(
            "the vocabulary puts a space before a text, which transformers does not for this class",
            path=path,
            found=known.name,
            hint="--no-vocab writes the tensors alone",
        )


def _ids(known: KnownClass, tokenizer: Tokenizer | None) -> JSONObject:
    """Return what config.json says of tokens, null for special ones that are not there: some are by default.

    Chameleon finds the tokens of pictures by their names.
    """
    named = (
        key for key in ("bos_token_id", "eos_token_id", "pad_token_id") if known.config_section + key not in known.solid
    )
    found: JSONObject = dict.fromkeys(named)
    found |= special_ids(tokenizer) if tokenizer is not None else {}
    if _MAP in known.keys:
        found[_MAP] = {text: token for token, text in enumerate(tokenizer.tokens)} if tokenizer else {}
    if known.model_type in ("t5", "umt5"):
        found["decoder_start_token_id"] = found.get("pad_token_id") or 0
    return found


def _unmapped(known: KnownClass) -> str:
    """Return what a model lacks besides where its configuration lists the vocabulary and there is none."""
    return f", and {_MAP} is empty: pictures' tokens get logits in transformers" if _MAP in known.keys else ""


def _main_type(shards: Shards) -> str:
    """Return the type of most bytes of weights."""
    weights: dict[str, int] = {}
    for entry in shards.entries:
        weights[entry.type.name] = weights.get(entry.type.name, 0) + entry.tensor.elements
    return max(weights, key=lambda name: weights[name], default="F32")
