"""Hold a file against every rule.

`runtime_keys` says whether the loader finds the keys and tensors it asks for. Beyond that its functions assert
relations between values, its graphs use tensors that its loader does not require, and some formulas are not those of
the model. Each rule is one such place, read by a person; `tools/llama_cpp_keys.py` ends where the function that a rule
was read from has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatchcase

from ggferry.converters.proof.runtime_rules import assertions, formulas
from ggferry.converters.proof.runtime_rules.rule import File
from ggferry.formats.gguf.values import Value

RULES = (*assertions.RULES, *formulas.RULES)


def broken(architecture: str, metadata: Mapping[str, Value], tensors: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, words) for every rule of llama.cpp that a file breaks."""
    file = File(architecture, metadata, tensors)
    for rule in RULES:
        if any(fnmatchcase(architecture, one) for one in rule.of.split()) and (text := rule.holds(file)):
            yield rule.kind, text
