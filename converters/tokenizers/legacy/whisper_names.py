"""The special tokens of Whisper, which follow from the size of the vocabulary (OpenAI's whisper/tokenizer.py)."""

from __future__ import annotations

_LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = tuple(_LANGUAGES.split())
TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
STEPS = 1501
"""<|0.00|> … <|30.00|>, 20 ms each."""


def special_names(held: int, rows: int) -> list[str]:
    """Return the names of the tokens from <|endoftext|> on, for a Whisper model with `rows` tokens.

    `held`: tokens that the vocabulary in the file holds; <|endoftext|> may be the last of them or follow. Empty where
    no known model has such sizes.
    """
    for languages in (LANGUAGES[:-1], LANGUAGES):
        names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{language}|>" for language in languages)]
        names += [f"<|{task}|>" for task in TASKS]
        names += [f"<|{step * 0.02:.2f}|>" for step in range(STEPS)]
        if held + len(names) - rows in (0, 1):
            return names
    return []
