"""What adapters do to a vocabulary: rows of single tokens that were trained, and tokens that were added.

PEFT saves `trainable_token_indices` as whole rows, which take the place of the base's (peft 0.21
`TrainableTokensLayer.get_merged_weights`), and an embedding that was resized as a whole tensor. The tokenizer of added
tokens is the one in the adapter's folder.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.sidecars import SIDECARS
from ggferry.formats.errors import InconsistentError, OutOfRangeError, ShapeError
from ggferry.support.printable import printable

HEAD, EMBEDDINGS = "lm_head.weight", ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_BESIDE_A_MODEL = ("config", "generation_config", "params.json")
"""Files of a model that say something of its tokenizer, and of other things."""
_TOKENIZER = tuple(each.role for each in SIDECARS if each.tokenizer and each.role not in _BESIDE_A_MODEL)
_VOCABULARY = tuple(each.role for each in SIDECARS if each.vocabulary)


def is_of_vocabulary(name: str) -> bool:
    """Return whether a tensor has a row for each token, by its name in Hugging Face's form."""
    return name == HEAD or name.endswith(EMBEDDINGS)


def token_indices(checkpoint: Checkpoint, config: Mapping[str, Any], module: str, rows: int) -> tuple[int, ...]:
    """Return which tokens the rows of a module belong to: the configuration has one list, or one for each module.

    Raises InconsistentError where it has none of so many different tokens.
    """
    declared = config.get("trainable_token_indices")
    if isinstance(declared, dict):
        declared = next((each for name, each in declared.items() if f".{module}".endswith(f".{name}")), None)
    listed = declared if isinstance(declared, list) and all(type(each) is int for each in declared) else []
    if len({*listed}) != len(listed) or len(listed) != rows or min(listed, default=-1) < 0:
        raise InconsistentError(
            f"trainable_token_indices of {module!r}",
            path=checkpoint.path,
            found=declared,
            expected=f"{rows} different token ids, as many as the adapter has rows",
        )
    return tuple(listed)


def check_tokens(checkpoint: Checkpoint, name: str, tokens: tuple[int, ...], rows: int) -> None:
    """Raise OutOfRangeError for a token that a tensor of so many rows does not have."""
    if max(tokens) >= rows:
        raise OutOfRangeError(
            f"trainable_token_indices: token of {name!r}",
            path=checkpoint.path,
            found=max(tokens),
            expected=f"below {rows}",
        )


def vocabulary_size(tensors: Mapping[str, TensorRef], path: str) -> int:
    """Return the rows of the embedding and of the output matrix. Raises ShapeError where they differ."""
    sizes = {name: ref.shape[0] for name, ref in tensors.items() if is_of_vocabulary(name) and len(ref.shape) == 2}
    if len({*sizes.values()}) != 1:
        raise ShapeError(
            "the adapter resizes one matrix of the vocabulary and not the other",
            path=path,
            found=", ".join(f"{printable(name)} with {rows} rows" for name, rows in sizes.items()),
            expected="as many rows in each",
        )
    return next(iter(sizes.values()))


def with_vocabulary_size(metadata: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    """Return a configuration with this vocab_size, wherever it states one."""
    inner = metadata.get("text_config")
    found = {**metadata, "vocab_size": rows} if "vocab_size" in metadata else {**metadata}
    if isinstance(inner, Mapping) and "vocab_size" in inner:
        found["text_config"] = {**inner, "vocab_size": rows}
    return found


def tokenizer_files(base: Mapping[str, str], adapter: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return sidecar files of a base with the tokenizer of an adapter's folder; None where that has none."""
    if not any(role in adapter for role in _VOCABULARY):
        return None
    kept = {role: path for role, path in base.items() if role not in _TOKENIZER}
    return kept | {role: path for role, path in adapter.items() if role in _TOKENIZER}


def other_tokenizer(base: Mapping[str, str], adapter: Mapping[str, str]) -> str:
    """Return the name of a vocabulary of the adapter's folder that has other bytes than the base's; '' for none."""
    for role in _VOCABULARY:
        if role in adapter and (role not in base or not filecmp.cmp(adapter[role], base[role], shallow=False)):
            return os.path.basename(adapter[role])
    return ""
