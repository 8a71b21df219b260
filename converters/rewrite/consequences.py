"""What an edit means for the model: whether ggferry understands it as before, and llama.cpp takes it as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.proof.runtime_keys import Finding, check
from ggferry.converters.proof.runtime_notes import unexplained
from ggferry.converters.rewrite.changes import Changes
from ggferry.converters.rewrite.parts import Part
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, RefusedError

_HINT = "--allow-broken writes it all the same"


def consequences(parts: Sequence[Part], changes: Changes, broken: bool) -> list[str]:
    """Return what llama.cpp does not read of the edited model and read before.

    With `broken`, all that follows is only said.

    Raises:
        RefusedError: ggferry understood the model, and would no longer; or llama.cpp took it, and would no longer.
    """
    before, after = _whole(parts, None), _whole(parts, changes)
    if before is None or after is None:
        return []
    tokens = any(key.startswith("tokenizer.") for key in changes.after)
    try:
        known = _understood(before, tokens)
    except GgferryError:
        return []  # it was not understood before, and nothing is expected of it
    try:
        found = [finding for finding in _understood(after, tokens) if finding not in known]
    except GgferryError as error:
        if broken:
            return [f"the model is no longer understood: {error.message}"]
        raise RefusedError(
            f"the model would no longer be understood: {error.message}",
            path=before.path,
            found=error.found,
            expected=error.expected,
            hint=_HINT,
        ) from None
    wrong = next((finding for finding in found if finding.kind not in ("unread", "otherwise")), None)
    if wrong and not broken:
        raise RefusedError(f"the model would no longer load: {wrong.text}", path=before.path, hint=_HINT)
    return [finding.text for finding in found]


def _whole(parts: Sequence[Part], changes: Changes | None) -> Checkpoint | None:
    """Return the model of all parts, edited; None for what is no model (an importance matrix)."""
    first = parts[0].file
    metadata = first.metadata if changes is None else changes.applied(first.metadata)
    if "general.architecture" not in metadata:
        return None
    renamed = {} if changes is None else changes.renamed
    gone = () if changes is None else changes.dropped
    refs = [ref for part in parts for ref in part.file.tensors.values() if ref.name not in gone]
    tensors = {name: replace(ref, name=name) for ref in refs if (name := renamed.get(ref.name, ref.name))}
    return replace(first, metadata=metadata, tensors=tensors)


def _understood(checkpoint: Checkpoint, tokens: bool) -> tuple[Finding, ...]:
    """Return where llama.cpp and a model do not fit. Raises one of `formats.errors` where it is not understood."""
    vocab_only = not checkpoint.tensors
    graph = understand(checkpoint, vocab_only=vocab_only)
    if tokens and "tokenizer.ggml.tokens" in checkpoint.metadata:
        load_tokenizer(checkpoint, 0 if vocab_only else vocabulary_rows(checkpoint))
    found = check(graph.architecture.name, checkpoint.metadata, checkpoint.tensors, vocab_only=vocab_only)
    return unexplained(found, graph.notes)
