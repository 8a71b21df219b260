"""Read qwen.tiktoken, the vocabulary beside the first QWen models: a base64 token and its rank a line → 'gpt2'.

Source: tokenization_qwen.py of Qwen/Qwen-7B: text is brought to NFC; special tokens come behind the ranks; words are
cut by the pattern that GGUF calls qwen2.
"""

from __future__ import annotations

from ggferry.converters.tokenizers.building_blocks.byte_level import merges_by_rank, spell
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.building_blocks.steps import placed
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.files.tiktoken import in_rank_order, read_ranks
from ggferry.converters.tokenizers.libraries.cross_check import QWEN, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.files.local_files import read_bytes

NAME = "qwen.tiktoken"
PRE = "qwen2"
END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END, TURN_START, TURN_END, *(f"<|extra_{n}|>" for n in range(205)))


def load_qwen(path: str, pre: str | None = None) -> Tokenizer:
    """Return the tokenizer of the file at `path`; `pre` overrides its pre-tokenizer.

    Raises CorruptError, DuplicateError or InconsistentError for a file that contradicts itself.
    """
    ranks = read_ranks(path)
    ranked, pre = in_rank_order(ranks, path), pre or PRE
    with placed(path):
        merges, how = merges_by_rank(ranks, whole=find_pre(pre).ignore_merges)
    count = len(ranked)
    return Tokenizer(
        model="gpt2",
        pre=pre,
        tokens=(*map(spell, ranked), *SPECIALS),
        types=(TokenType.NORMAL,) * count + (TokenType.CONTROL,) * len(SPECIALS),
        merges=tuple(f"{spell(left)} {spell(right)}" for left, right in merges),
        ids={"bos": count, "eos": count, "eot": count + SPECIALS.index(TURN_END)},
        flags={"add_bos": False, "add_eos": False},
        notes=(
            f"{len(SPECIALS)} special tokens are not in {NAME}: named as tokenization_qwen.py names them",
            "tokenization_qwen.py brings text to NFC; no GGUF key says so: runtimes take it as it stands",
        ),
        origins={"tokens": NAME, "merges": how, "pre": "the pattern of tokenization_qwen.py"},
    )


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Read the qwen.tiktoken beside a checkpoint."""
    return with_added(load_qwen(inputs.sidecars.files[NAME], inputs.pre), inputs.added)


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tiktoken by QWen's pattern, which merges by rank and knows no list of merges."""
    path = inputs.sidecars.files[NAME]
    return ReferenceTokenizer(QWEN, read_bytes(path), path, inputs.added, inputs.pre is not None)


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path(NAME) is not None


SOURCE = Source(NAME, 36, NAME, _probe, load, reference)
