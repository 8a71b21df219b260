"""What today's llama.cpp would refuse in a vocabulary, or cut otherwise; the user learns it before the file is written.

Models and pre-tokenizers that llama.cpp does not know are found elsewhere (`converters.proof.runtime_keys`).
"""

from __future__ import annotations

from ggferry.converters.tokenizers.in_llama_cpp import cut_otherwise
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
    if any(mark in name.lower() for mark in ("phi3", "phi-3")):
        absent = [text for text in PHI3_TOKENS if text not in tokenizer.tokens]
        if absent:
            found.append(
                f"the name {name!r} makes it look for {', '.join(absent)}, which the vocabulary lacks "
                "(--model-name without phi3 avoids that)"
            )
    if tokenizer.model == "llama" and tokenizer.types and TokenType.BYTE not in tokenizer.types:
        found.append("no byte tokens: any text outside the pieces ends the process")
    return tuple(found)


def differences(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return what llama.cpp makes of texts otherwise than the vocabulary's own rules, a sentence each."""
    scripts = cut_otherwise(tokenizer)
    if not scripts:
        return ()
    return (
        f"llama.cpp cuts texts otherwise than the model's own tokenizer, in these scripts: {', '.join(scripts)}; what "
        "it makes of such texts is not what the model was trained on (its WordPiece keeps one sign of a composed "
        "character, and no vowel signs)",
    )
