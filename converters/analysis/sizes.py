"""How a model's bytes are spent: by type of tensor, by what the tensors are for, and bits for each weight."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ggferry.formats.checkpoint import TensorRef
from ggferry.support.records import dataclass

_USES = (
    ("experts", r"exps\b|exps\.|\.experts\.|chexps"),
    ("shared experts", r"shexp|shared_expert"),
    ("embedding", r"^(token|position)_embd|^token_types|embed_tokens|\bwte\b|\bwpe\b|_embeddings|embed_in"),
    ("output", r"^output(\.|$)|lm_head|embed_out|^cls|^output\.weight"),
    ("recurrent", r"ssm_|time_mix|channel_mix|shortconv|\.mixer\.|\.rwkv|\.linear_attn\."),
    ("attention", r"attn|attention|self_attn|indexer"),
    ("feed-forward", r"ffn|mlp|feed_forward|\bfc\d?\b"),
)
_NORM = re.compile(r"norm|\bln_|layernorm", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a model.

    Attributes:
        name: Its type, or what it is for.
        tensors: How many tensors.
        elements: How many numbers they hold.
        nbytes: How many bytes.
    """

    name: str
    tensors: int
    elements: int
    nbytes: int

    @property
    def bits(self) -> float:
        """Bits for each number."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0


def use_of(ref: TensorRef) -> str:
    """Return what a tensor is for, in a word, by the names that GGUF and the usual checkpoints give tensors."""
    if _NORM.search(ref.name) and len(ref.shape) < 2:
        return "norms"
    return next((use for use, pattern in _USES if re.search(pattern, ref.name)), "other")


def by_type(tensors: Iterable[TensorRef]) -> tuple[Share, ...]:
    """Return the shares of the types, the largest first."""
    return _shares((ref.type.name, ref) for ref in tensors)


def by_use(tensors: Iterable[TensorRef]) -> tuple[Share, ...]:
    """Return the shares of what tensors are for, the largest first."""
    return _shares((use_of(ref), ref) for ref in tensors)


def whole(tensors: Iterable[TensorRef]) -> Share:
    """Return all tensors as one share."""
    found = _shares(("all", ref) for ref in tensors)
    return found[0] if found else Share("all", 0, 0, 0)


def _shares(named: Iterable[tuple[str, TensorRef]]) -> tuple[Share, ...]:
    sums: dict[str, list[int]] = {}
    for name, ref in named:
        held = sums.setdefault(name, [0, 0, 0])
        held[0] += 1
        held[1] += ref.elements
        held[2] += ref.nbytes
    found = (Share(name, *held) for name, held in sums.items())
    return tuple(sorted(found, key=lambda share: (-share.nbytes, share.name)))
