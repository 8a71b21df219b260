"""What today's llama.cpp would refuse in a vocabulary, or cut otherwise; the user learns it before the file is written.

Models and pre-tokenizers that llama.cpp does not know are found elsewhere (`converters.proof.runtime_keys`).
"""

from __future__ import annotations

from ggferry.converters.tokenizers.in_llama_cpp import found_in_text, split_differently, taken_for_special
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType

# llama-vocab.cpp changes the attributes of these tokens in any model whose general.name contains "phi3" or "phi-3",
# and dies with unordered_map::at where one is absent
PHI3_TOKENS = ("</s>", "<unk>", "<s>", "<|endoftext|>")


def objections(tokenizer: Tokenizer, name: str = "") -> tuple[str, ...]:
    """Return why llama.cpp would not load a file with this tokenizer; `name`: general.name of the file."""
    found = []
    if len(set(tokenizer.tokens)) < len(tokenizer.tokens):
        found.append("two tokens have one text")
    for flag, role in (("add_bos", "bos"), ("add_eos", "eos"), ("add_sep", "sep")):
        if tokenizer.flags.get(flag) and role not in tokenizer.ids and tokenizer.model in ("gpt2", "rwkv"):
            found.append(f"{flag} is set but no {role} token")
    if is_called_phi3(name):
        absent = [text for text in PHI3_TOKENS if text not in tokenizer.tokens]
        if absent:
            found.append(
                f"the name {name!r} makes it look for {', '.join(absent)}, which the vocabulary lacks "
                "(--model-name without phi3 avoids that)"
            )
    if tokenizer.model == "llama" and tokenizer.types and TokenType.BYTE not in tokenizer.types:
        found.append("no byte tokens: any text outside the pieces ends the process")
    return tuple(found)


def is_called_phi3(name: str) -> bool:
    """Return whether llama.cpp takes a model of this `general.name` for a Phi-3."""
    return any(mark in name.lower() for mark in ("phi3", "phi-3"))


SHOWN = 8
BLANK = ("blanks in front", "nothing but blanks", "blanks in runs")
WHY = {
    "bert": "its WordPiece keeps one sign of a composed character and no vowel signs, knows no longest word, and has "
    "tables of a later Unicode",
    "gpt2": "its tables of Unicode are of version 15",
    "t5": "its unigram has its own rule for blanks",
}
NO_FALLBACK = "its unigram has no byte fallback: what no piece holds is unknown"


def differences(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return what llama.cpp makes of texts otherwise than the vocabulary's own rules, a sentence each."""
    found = []
    if constructs := split_differently(tokenizer):
        why = WHY[tokenizer.model]
        if tokenizer.model == "t5" and TokenType.BYTE in (tokenizer.types or ()):
            why = f"{NO_FALLBACK}; {why}" if any(name in constructs for name in BLANK) else NO_FALLBACK
        found.append(
            f"llama.cpp cuts texts otherwise than the model's own tokenizer, in these scripts and constructs: "
            f"{', '.join(constructs)}; what it makes of such texts is not what the model was trained on ({why})"
        )
    if names := found_in_text(tokenizer):
        found.append(
            f"llama.cpp finds the names of control tokens in plain text, which the model's own tokenizer does not: "
            f"{', '.join(map(repr, names[:SHOWN]))}{f' and {len(names) - SHOWN} more' if names[SHOWN:] else ''}"
        )
    if taken := taken_for_special(tokenizer):
        found.append(
            f"llama.cpp takes ordinary tokens for special ones by their text: {', '.join(map(repr, taken))}; it finds "
            "them in a prompt, and ends there"
        )
    return tuple(found)
