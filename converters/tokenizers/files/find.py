"""Find a checkpoint's tokenizer in its sidecar files: which file holds it, and in which order they are tried."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.tokenizers.files.repairs import distinct
from ggferry.converters.tokenizers.files.sidecar_settings import (
    Sidecars,
    Source,
    TokenizerInputs,
    added_tokens,
    with_flags,
    with_roles,
    with_templates,
)
from ggferry.converters.tokenizers.libraries.cross_check import SENTENCEPIECE, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint_folder.sidecars import MISTRAL, tokenizer_names
from ggferry.formats.errors import MissingError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_VOCAB
from ggferry.support.registry import mentioning, scan

ENDINGS = {".json": "tokenizer.json", ".model": "tokenizer.model", ".txt": "rwkv_vocab_v20230424.txt"}
ENDINGS |= {".bin": "tokenizer.bin"}
ENDINGS |= {os.path.splitext(name)[1]: "tokenizer.model" for name in MISTRAL}
APPENDS_EOS = ("T5Tokenizer", "T5TokenizerFast")
NO_SPACE_PREFIX = ("gemma",)  # model types whose tokenizer puts no space in front (GemmaTokenizer of transformers)
WITHOUT_SPACE = b"\x1a\x02\x18\x00"
"""normalizer_spec.add_dummy_prefix = false: appended to a model file, it takes the place of what the file states."""
WITHOUT_TYPES = ("distilbert",)  # and a loader that wants a number above 0


def files_of(source: str) -> str | Mapping[str, str]:
    """Return what `load` takes for a tokenizer that a user names.

    A folder is taken as it is. A file is taken under its own name where that is one of those looked for, else under the
    one that its ending implies ('20B_tokenizer.json' is a tokenizer.json).
    """
    if os.path.isdir(source):
        return source
    name = os.path.basename(source)
    return {name if name in tokenizer_names() else ENDINGS.get(os.path.splitext(name)[1], name): source}


def load(
    where: str | Mapping[str, str],
    *,
    rows: int | None = None,
    pre: str | None = None,
    keep_json: bool = False,
    trim: bool = False,
) -> Tokenizer:
    """Return the tokenizer of a checkpoint directory, or of its sidecar files (any role → path).

    Args:
        where: The directory or the files.
        rows: Rows of the embedding, to which the vocabulary is brought (`Tokenizer.padded`).
        pre: Overrides the derived pre-tokenizer.
        keep_json: Whether to store tokenizer.json as `tokenizer.huggingface.json`.
        trim: Whether to drop pieces without embedding rows.

    Raises MissingError when no file holds the vocabulary, otherwise as each loader says.
    """
    sidecars = Sidecars.of(where)
    inputs = TokenizerInputs(sidecars, added_tokens(sidecars), rows, pre)
    tokenizer = _source(inputs).load(inputs)
    tokenizer = _by_class(tokenizer, sidecars)
    tokenizer = with_templates(with_flags(with_roles(tokenizer, sidecars), sidecars), sidecars)
    tokenizer = distinct(tokenizer)
    whole = sidecars.path("tokenizer.json")
    if keep_json and whole is not None:
        tokenizer = replace(tokenizer, huggingface_json=read_text(whole))
    return tokenizer if rows is None else tokenizer.padded(rows, trim=trim, path=sidecars.place)


def reference(where: str | Mapping[str, str], pre: str | None = None) -> tuple[ReferenceTokenizer | None, Sidecars]:
    """Return the library and file that the tokenizer of `load` was made with (None where none), and all files."""
    sidecars = Sidecars.of(where)
    inputs = TokenizerInputs(sidecars, added_tokens(sidecars), pre=pre)
    found = _source(inputs).reference(inputs)
    if found is not None and found.library == SENTENCEPIECE and _puts_no_space(sidecars):
        found = replace(found, data=found.data + WITHOUT_SPACE)
    return found, sidecars


def _source(inputs: TokenizerInputs) -> Source:
    """Return the first source whose files are there."""
    sources: tuple[Source, ...] = (
        *scan("ggferry.converters.tokenizers.files", "SOURCE"),
        *mentioning("ggferry.converters.tokenizers.legacy", "SOURCE", "SOURCE = "),
    )
    for source in sorted(sources, key=lambda source: source.order):
        if source.probe(inputs.sidecars):
            return source
    raise MissingError(
        "no tokenizer file was found",
        path=inputs.sidecars.place,
        expected="one of " + "; ".join(source.files for source in sources),
    )


def _by_class(tokenizer: Tokenizer, sidecars: Sidecars) -> Tokenizer:
    """Apply what the tokenizer's class does and no file states."""
    flags, origins = dict(tokenizer.flags), dict(tokenizer.origins)
    name = sidecars.text("tokenizer_config.json", "tokenizer_class")
    if name in APPENDS_EOS:
        flags["add_eos"], origins["add_eos"] = True, name
    family = sidecars.text("config.json", "model_type")
    normalized = (
        tokenizer.origins.get("add_space_prefix") == "tokenizer.json"
    )  # whose normalizer is what transformers runs
    if tokenizer.model == "llama" and _puts_no_space(sidecars) and not normalized:
        flags["add_space_prefix"], origins["add_space_prefix"] = False, f"model_type {family}"
    kinds = json_kinds.whole(sidecars.object("config.json"), "type_vocab_size", sidecars.path("config.json"))
    if family in WITHOUT_TYPES:
        tokenizer, origins["token_type_count"] = replace(tokenizer, token_type_count=1), f"model_type {family}"
    elif kinds is not None and 0 <= kinds <= MAX_VOCAB:
        tokenizer, origins["token_type_count"] = replace(tokenizer, token_type_count=kinds), "type_vocab_size"
    return replace(tokenizer, flags=flags, origins=origins)


def _puts_no_space(sidecars: Sidecars) -> bool:
    """Return whether the tokenizer's class puts no space in front of a text, whatever tokenizer.model says."""
    return sidecars.text("config.json", "model_type").startswith(NO_SPACE_PREFIX)
