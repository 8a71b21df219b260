"""Read Mistral's tekken.json: byte-level BPE by rank behind a fixed number of special tokens → 'gpt2', pre 'tekken'.

Source: mistral_common 1.13, tokens/tokenizers/tekken.py (`Tekkenizer.from_file`, `__init__`): ordinary ids come behind
`default_num_special_tokens`; of the vocabulary the first ranks are used, up to `default_vocab_size` in all; special
tokens that the file does not name are `<SPECIAL_n>`; files without a list have the twenty of 2024.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ggferry.converters.tokenizers.building_blocks.byte_level import merges_by_rank, spell
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import PRES, find_pre
from ggferry.converters.tokenizers.building_blocks.steps import placed
from ggferry.converters.tokenizers.files.derive_pre_tokenizer import canonical
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.libraries.cross_check import TEKKEN, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import CorruptError, InconsistentError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB

NAME = "tekken.json"
NAMES_2024 = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
"""The special tokens of files that name none (DEPRECATED_SPECIAL_TOKENS)."""
FILLER = "<SPECIAL_{}>"
ROLES = {"<s>": "bos", "</s>": "eos", "<unk>": "unk", "<pad>": "pad"}


def load_tekken(document: Mapping[str, Any], path: str | None, pre: str | None = None) -> Tokenizer:
    """Return the tokenizer that a tekken.json states.

    Args:
        document: The content of the file.
        path: Its path, for errors.
        pre: A pre-tokenizer that overrides the one of its pattern.

    Raises:
        CorruptError, OutOfRangeError, InconsistentError: The file contradicts itself.
        UnsupportedError: No known pre-tokenizer cuts by its pattern.
    """
    config = json_kinds.members(document, "config", path)
    specials = _specials(document, config, path)
    size = json_kinds.whole(config, "default_vocab_size", path)
    if size is None or not len(specials) < size <= MAX_VOCAB:
        expected = f"{len(specials) + 1} to {MAX_VOCAB}"
        raise OutOfRangeError("default_vocab_size", path=path, found=size, expected=expected)
    ranked = _ranked(document, size - len(specials), path)
    pre = pre or _pre(config, path)
    with placed(path):
        ranks = {token: rank for rank, token in enumerate(ranked)}
        merges, how = merges_by_rank(ranks, whole=find_pre(pre).ignore_merges)
    named = [name for name, _ in specials]
    kinds = tuple(TokenType.CONTROL if control else TokenType.USER_DEFINED for _, control in specials)
    return Tokenizer(
        model="gpt2",
        pre=pre,
        tokens=(*named, *map(spell, ranked)),
        types=(*kinds, *(TokenType.NORMAL,) * len(ranked)),
        merges=tuple(f"{spell(left)} {spell(right)}" for left, right in merges),
        ids={role: named.index(text) for text, role in ROLES.items() if text in named},
        flags={"add_bos": True, "add_eos": False},
        notes=(
            "tekken.json has no chat template: Mistral renders its own in mistral-common",
            "llama.cpp cuts words at combining marks (Devanagari, Thai, Tamil, …), and Mistral's pattern does not",
        ),
        origins={"tokens": NAME, "merges": how, "pre": f"the pattern of {NAME}"},
    )


def _specials(document: Mapping[str, Any], config: Mapping[str, Any], path: str | None) -> list[tuple[str, bool]]:
    """Return text and whether it is a control token of each special token, by id."""
    count = json_kinds.whole(config, "default_num_special_tokens", path)
    if count is None or not 0 < count <= MAX_VOCAB:
        raise OutOfRangeError("default_num_special_tokens", path=path, found=count, expected="1 or more")
    declared = document.get("special_tokens")
    entries = [{"rank": n, "token_str": name} for n, name in enumerate(NAMES_2024)] if declared is None else declared
    found: dict[int, tuple[str, bool]] = {}
    for entry in entries if isinstance(entries, list) else [None]:
        entry_fields = entry if isinstance(entry, dict) else {}
        rank, text = entry_fields.get("rank"), entry_fields.get("token_str")
        if not isinstance(rank, int) or not isinstance(text, str) or not text or not 0 <= rank < count or rank in found:
            raise CorruptError("special token has no rank or text of its own", path=path, found=entry)
        found[rank] = text, entry_fields.get("is_control") is not False
    texts = [found.get(rank, (FILLER.format(rank), True)) for rank in range(count)]
    if len({text for text, _ in texts}) != count:
        raise CorruptError("duplicate special token", path=path)
    return texts


def _ranked(document: Mapping[str, Any], count: int, path: str | None) -> list[bytes]:
    """Return the bytes of the first `count` tokens by rank."""
    entries = document.get("vocab")
    if not isinstance(entries, list) or len(entries) < count:
        found = len(entries) if isinstance(entries, list) else entries
        raise CorruptError("the vocabulary is shorter than its config says", path=path, found=found, expected=count)
    ranked: list[bytes | None] = [None] * count
    seen = set()
    for entry in entries:
        rank, token = _token(entry, path)
        if rank >= count:
            continue
        if ranked[rank] is not None or token in seen:
            raise CorruptError("duplicate rank or token", path=path, found=entry)
        ranked[rank] = token
        seen.add(token)
    if None in ranked:
        raise InconsistentError("ranks leave gaps", path=path, found=f"none has rank {ranked.index(None)}")
    return [token for token in ranked if token is not None]


def _token(entry: Any, path: str | None) -> tuple[int, bytes]:
    try:
        rank, token = entry["rank"], base64.b64decode(entry["token_bytes"], validate=True)
        if isinstance(rank, int) and 0 <= rank < MAX_VOCAB and 0 < len(token) <= MAX_TOKEN_BYTES:
            return rank, token
    except (KeyError, TypeError, ValueError, binascii.Error):
        pass
    raise CorruptError("token has no rank or bytes", path=path, found=entry)


def _pre(config: Mapping[str, Any], path: str | None) -> str:
    """Return the name of the pre-tokenizer that cuts by the file's pattern."""
    pattern = json_kinds.text(config, "pattern", path, "")
    chain = (canonical(pattern),)
    for pre in PRES:
        if pre.ignore_merges and tuple(map(canonical, pre.chain)) == chain:
            return pre.names[0]
    raise UnsupportedError(
        "no known pre-tokenizer cuts by this pattern", path=path, found=pattern, hint="--pre NAME forces one"
    )


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Read the tekken.json beside a checkpoint."""
    path = inputs.sidecars.files[NAME]
    return with_added(load_tekken(inputs.sidecars.object(NAME), path, inputs.pre), inputs.added)


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tiktoken by the file's own pattern, as mistral-common uses it."""
    return ReferenceTokenizer(
        TEKKEN, inputs.sidecars.raw(NAME), inputs.sidecars.files[NAME], inputs.added, inputs.pre is not None
    )


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path(NAME) is not None


SOURCE = Source("tekken.json", 35, NAME, _probe, load, reference)
