"""Make the vocabulary that GGUF will hold from a Checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ggferry.converters.model_graph.open_checkpoint import header_layouts
from ggferry.converters.tokenizers.code_tokens import code_tokens
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.files.rwkv_world import KEY, read_world
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars
from ggferry.converters.tokenizers.further_tokens import FurtherTokens
from ggferry.converters.tokenizers.latent_tokens import latent_tokens
from ggferry.converters.tokenizers.legacy.clip_bpe import of_clip_cpp
from ggferry.converters.tokenizers.legacy.families import from_family
from ggferry.converters.tokenizers.legacy.llama import from_raw_vocab
from ggferry.converters.tokenizers.libraries.cross_check import ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import MissingError, UsageError
from ggferry.formats.gguf.values import Value
from ggferry.formats.reader import Kind, kind_of


@dataclass(frozen=True, slots=True)
class VocabOptions:
    """What the user says about the vocabulary.

    Attributes:
        model: Path of the original tokenizer.model, which wins.
        pre: Name of the pre-tokenizer.
        keep_json: Whether to store tokenizer.json whole in the output.
        trim: Whether to drop pieces without embedding rows.
        none: Whether to write no vocabulary.
        source: The model's own tokenizer, a folder or a file, where the checkpoint's is damaged or missing.
    """

    model: str | None = None
    pre: str | None = None
    keep_json: bool = False
    trim: bool = False
    none: bool = False
    source: str | None = None


def load_tokenizer(checkpoint: Checkpoint, rows: int, options: VocabOptions = VocabOptions()) -> Tokenizer | None:
    """Return the checkpoint's vocabulary as GGUF will hold it, or None where it has none.

    Args:
        checkpoint: The source.
        rows: Rows of the embedding.
        options: What the user says about the vocabulary.

    Raises MissingError when a training checkpoint's folder holds no tokenizer.
    """
    if options.none:
        return None
    if checkpoint.container == "gguf":
        return _of_gguf(checkpoint, rows)
    rule = next((layout.vocab for layout in header_layouts() if layout.name == checkpoint.layout), None)
    if kind_of(checkpoint.container) is Kind.LEGACY and rule is not None and (rule.texts != "llama" or options.source):
        return from_family(
            checkpoint.vocab,
            rule,
            rows=rows,
            source=options.source or options.model,
            pre=options.pre,
            keep_json=options.keep_json,
            path=checkpoint.path,
        )
    if checkpoint.vocab is not None:
        if options.source:
            raise UsageError("the file holds its vocabulary whole", path=checkpoint.path, hint="--tokenizer-model FILE")
        return from_raw_vocab(
            checkpoint.vocab, tokenizer_model=options.model, model_rows=rows, pre=options.pre, path=checkpoint.path
        )
    beside = dict(checkpoint.sidecars) | ({"tokenizer.model": options.model} if options.model else {})
    where = find.files_of(options.source) if options.source else beside
    further = further_tokens(checkpoint)
    texts = rows - len(further.names) if rows and further else rows
    try:
        found = find.load(where, rows=texts or None, pre=options.pre, keep_json=options.keep_json, trim=options.trim)
        return further.behind(found) if further else found
    except MissingError as error:
        error.hint = error.hint or "--tokenizer FILE or DIR, or --no-vocab writes the tensors alone"
        raise


def further_tokens(checkpoint: Checkpoint) -> FurtherTokens | None:
    """Return the tokens that follow those of texts, where the model's own files have none of them. Raises as these."""
    return code_tokens(checkpoint) or latent_tokens(checkpoint)


def reference_of(
    checkpoint: Checkpoint, options: VocabOptions = VocabOptions()
) -> tuple[ReferenceTokenizer | None, Sidecars | None]:
    """Return the library that the vocabulary of `load_tokenizer` was made with, and the files that show it.

    None where no sidecar file does (a GGUF source, a vocabulary within a file of the GGML era), or no library reads it.
    """
    where = _where(checkpoint, options)
    return (None, None) if where is None else find.reference(where, options.pre)


def vocabulary_files(checkpoint: Checkpoint, options: VocabOptions = VocabOptions()) -> Mapping[str, str] | None:
    """Return the files that say something about the vocabulary, by name; None where no file beside the weights does."""
    where = _where(checkpoint, options)
    return None if where is None else Sidecars.of(where).files


def _where(checkpoint: Checkpoint, options: VocabOptions) -> str | Mapping[str, str] | None:
    """Return the folder or the files that the vocabulary is from; None where it is within the checkpoint."""
    given = options.source or options.model
    legacy = kind_of(checkpoint.container) is Kind.LEGACY
    if options.none or kind_of(checkpoint.container) is Kind.GGUF or (legacy and given is None):
        return None
    if legacy and given:
        return find.files_of(given)
    beside = dict(checkpoint.sidecars) | ({"tokenizer.model": options.model} if options.model else {})
    return find.files_of(options.source) if options.source else beside


def _of_gguf(checkpoint: Checkpoint, rows: int) -> Tokenizer | None:
    """Return the vocabulary a GGUF file states: token by token, or only as the text of an RWKV World vocabulary."""
    if (found := of_clip_cpp(checkpoint.metadata)) is not None:
        return found.padded(rows or len(found.tokens), path=checkpoint.path)
    if "tokenizer.ggml.tokens" in checkpoint.metadata:
        return Tokenizer.from_kv(checkpoint.metadata, rows=rows or None, path=checkpoint.path)
    world = checkpoint.metadata.get(KEY)
    if not isinstance(world, Value) or not isinstance(world.data, str):
        return None
    tokenizer = read_world(world.data, checkpoint.path)
    return tokenizer.padded(rows or len(tokenizer.tokens), path=checkpoint.path)


def vocabulary_rows(checkpoint: Checkpoint) -> int:
    """Return the rows that the vocabulary should have, without binding the model.

    That is the header's count, or else the number of tokens.
    """
    if checkpoint.container == "gguf":
        tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
        return len(tokens.data) if isinstance(tokens, Value) else 0
    return int(checkpoint.header.get("n_vocab", 0))
