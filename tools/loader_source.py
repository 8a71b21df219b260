"""What the walk of `loader_walk` needs of llama.cpp's sources: names of keys, tensors and architectures, the class that
loads each, the types of what is loaded into."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpp_statements import Function, ParseError, Tokens, clean, closing, functions, split, tokenize

TYPE = re.compile(
    r"(?:const )?((?:enum )?(?:bool|float|double|u?int\d*(?:_t)?|size_t|auto|llama_pooling_type|std::string"
    r"|std::(?:vector|array|unordered_set) < .*? >))(?: const)?(?: [&*])* ([A-Za-z_]\w*)(?: (=|\(|\{) (.*))?$"
)


def joined(tokens: Sequence[str]) -> str:
    return " ".join(tokens)


@dataclass(frozen=True, slots=True)
class Source:
    """llama.cpp's sources as far as the walk needs them."""

    keys: Mapping[str, str]
    tensors: Mapping[str, str]
    architectures: Mapping[str, str]
    classes: Mapping[str, str]
    parents: Mapping[str, str]
    declared: frozenset[tuple[str, str]]
    members: Mapping[str, tuple[str, str]]
    enums: Mapping[str, str]
    functions: Mapping[str, Callable[[], Function]] = field(repr=False)
    texts: Mapping[str, Tokens] = field(repr=False)

    @staticmethod
    def of(files: Mapping[str, str]) -> Source:
        arch, model, header = (
            clean(files["llama-arch.cpp"]),
            clean(files["llama-model.cpp"]),
            clean(files["models/models.h"]),
        )
        parts = [path for path in files if path.startswith("models/") and path.endswith(".cpp")]
        found: dict[str, Callable[[], Function]] = {}
        texts: dict[str, Tokens] = {}
        for path in ("llama-model.cpp", "llama-vocab.cpp", *parts):
            for name, read in functions(files[path]):
                found.setdefault(name, read)
        for name in ("llama_model_base::load_tensors", "llama_vocab::impl::load"):
            path = "llama-vocab.cpp" if "vocab" in name else "llama-model.cpp"
            tokens = tokenize(files[path])
            texts[name] = tokens[tokens.index(name) :]
            texts[name] = texts[name][: closing(texts[name], texts[name].index("{"))]
        return Source(
            {symbol: _key(text) for symbol, text in _table(arch, "LLM_KV_NAMES", "LLM_KV_")},
            {symbol: _tensor(text) for symbol, text in _table(arch, "LLM_TENSOR_NAMES", "LLM_TENSOR_")},
            {text: symbol for symbol, text in _table(arch, "LLM_ARCH_NAMES", "LLM_ARCH_") if text[0] != "("},
            _mapping(model),
            dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", header)),
            frozenset(_methods(header)),
            _members(files),
            dict(re.findall(r"\b(LLAMA_[A-Z0-9_]+)\s*=\s*(-?\d+)", clean(files["llama-hparams.h"]))),
            found,
            texts,
        )

    def function(self, name: str) -> Function:
        return self.functions[name]()

    def raw(self, name: str) -> Tokens:
        return self.texts[name]

    def method(self, owner: str, name: str) -> Function:
        """A method of the class, or of the nearest base that declares it."""
        while (owner, name) not in self.declared:
            owner = self.parents[owner]
        return self.function(f"{owner}::{name}")


def _key(text: str) -> str:
    return text.removeprefix("%s")


def _tensor(text: str) -> str:
    return text.replace("%d", "{n}", 1).replace("%d", "{e}")


def _table(text: str, name: str, prefix: str) -> list[tuple[str, str]]:
    """The pairs of a map from an enumeration to texts."""
    body = text[text.index(f" {name} = ") :]
    body = body[: body.index("};")]
    found = re.findall(rf'\{{\s*({prefix}\w+)\s*,\s*"([^"]*)"\s*\}}', body)
    if len(found) != body.count(prefix) - (prefix in body[: body.index("=")]):
        raise ParseError(f"{name}: {len(found)} of {body.count(prefix)} entries read")
    return found


def _mapping(text: str) -> dict[str, str]:
    """Architecture → the class that loads it (`llama_model_mapping`); cases may share one."""
    body = text[text.index("llama_model_mapping(") :]
    found, waiting = {}, []
    for line in body[: body.index("\n}")].splitlines():
        if case := re.search(r"case (LLM_ARCH_\w+):", line):
            waiting.append(case[1])
        if made := re.search(r"return new (\w+)\(", line):
            found.update(dict.fromkeys(waiting, made[1]))
            waiting = []
    return found


def _methods(header: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^struct ", header, flags=re.MULTILINE)[1:]:
        owner = part.split()[0]
        for name in re.findall(r"void (load_arch_\w+)\(", part):
            yield owner, name


def _members(files: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Variables of the structures that are loaded into: name → (type, initial value or '')."""
    hparams = tokenize(files["llama-hparams.h"])
    found = {
        **_fields(hparams, "llama_hparams_posnet", "hparams . posnet . "),
        **_fields(hparams, "llama_hparams_convnext", "hparams . convnext . "),
        **_fields(hparams, "llama_hparams", "hparams . "),
        **_fields(tokenize(files["llama-model.h"]), "llama_model"),
        **_fields(tokenize(files["llama-vocab.cpp"]), "llama_vocab::impl"),
    }
    models = tokenize(files["models/models.h"])
    for owner in re.findall(r"struct (llama_model_\w+) :", " ".join(models)):
        for name, declared in _fields(models, owner).items():
            if found.setdefault(name, declared) != declared:
                raise ParseError(f"{owner}::{name} has two types")
    return found


def _fields(tokens: Tokens, owner: str, prefix: str = "") -> dict[str, tuple[str, str]]:
    start = next(
        i for i in range(1, len(tokens)) if tokens[i - 1 : i + 1] == ["struct", owner] and tokens[i + 1] in "{:"
    )
    start = tokens.index("{", start)
    inner = split(tokens[start + 1 : closing(tokens, start)], ";")
    matches = (TYPE.match(joined(part)) for part in inner)
    return {prefix + found[2]: (found[1], found[4] or "") for found in matches if found}
