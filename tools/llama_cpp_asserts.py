"""Write down what llama.cpp asserts of a file, architecture by architecture: `converters/proof/llama_cpp_asserts.txt`.

    python tools/llama_cpp_asserts.py xllamacpp-2026.10.11549.tar.gz > converters/proof/llama_cpp_asserts.txt

The archive is that of tools/llama_cpp_keys.py. Per architecture the functions that read keys and make tensors are
looked through for what ends a load (`loader`), and those of its graph for what ends the first token (`graph`). Each
line has the condition or the message in llama.cpp's words. The digest behind the name is that of the loader's
functions: where it changes, their text has.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping

from cpp_statements import clean
from llama_cpp_keys import sources
from loader_source import Source

HEAD = """\
# What llama.cpp asserts of a file's keys and tensors, for each architecture it can load.
# Made by tools/llama_cpp_asserts.py from llama.cpp's sources in {archive}; not edited by hand.
#
#   [ARCHITECTURE] DIGEST     of the functions load_arch_hparams and load_arch_tensors
#   loader TEXT               the condition, or the message, of GGML_ASSERT, GGML_ABORT and throw there
#   graph TEXT                those of the functions of its graph
version {version}
"""
ENDS = re.compile(r"\b(GGML_ASSERT|GGML_ABORT|throw std::\w+)\s*\(")
LOADERS = ("load_arch_hparams", "load_arch_tensors")


def closed(text: str, start: int, pair: str) -> int:
    """Return the place behind the bracket that closes the one at `start`; brackets in strings do not count."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif text[at] == "'" and text[at + 2 : at + 3] == "'":
            at += 2
        elif text[at] in pair:
            depth += 1 if text[at] == pair[0] else -1
            if not depth:
                return at + 1
        at += 1
    raise SystemExit("a bracket that nothing closes")


def defined(texts: Mapping[str, str], pattern: str) -> Iterator[str]:
    """Yield the definitions of functions whose qualified name matches, from the name to the last brace."""
    for text in texts.values():
        for found in re.finditer(rf"\b{pattern}\s*\(", text):
            end = closed(text, found.end() - 1, "()")
            body = re.compile(r"[^;{]*\{").match(text, end)
            if body:
                yield text[found.start() : closed(text, body.end() - 1, "{}")]


def asserted(body: str) -> Iterator[str]:
    """Yield the text of everything in a function that ends the process or the load, each once."""
    seen = set()
    for found in ENDS.finditer(body):
        text = " ".join(body[found.end() : closed(body, found.end() - 1, "()") - 1].split())
        if text not in seen:
            seen.add(text)
            yield text


def graph_of(header: str, owner: str) -> str:
    """Return the class whose graph an architecture's class takes."""
    part = next(part for part in re.split(r"^struct ", header, flags=re.MULTILINE) if part.split()[:1] == [owner])
    taken = re.search(r"using graph = (llama_model_\w+)::graph", part)
    return taken[1] if taken else owner


def lines(files: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of every architecture."""
    source, header = Source.of(files), clean(files["models/models.h"])
    texts = {path: clean(text) for path, text in files.items() if re.fullmatch(r"models/.*\.cpp", path)}
    for name, symbol in source.architectures.items():
        owner = source.classes.get(symbol)
        if owner is None or symbol == "LLM_ARCH_CLIP":
            continue
        loaders = []
        for function in LOADERS:
            one = owner
            while (one, function) not in source.declared:
                one = source.parents[one]
            loaders += list(defined(texts, f"{one}::{function}"))
        made = list(defined(texts, rf"{graph_of(header, owner)}::graph(?:<\w+>)?::\w+"))
        if len(loaders) != len(LOADERS):
            raise SystemExit(f"{name}: {len(loaders)} functions that load")
        digest = hashlib.sha256("\n".join(" ".join(text.split()) for text in loaders).encode()).hexdigest()[:16]
        yield from ("", f"[{name}] {digest}")
        yield from dict.fromkeys(f"loader {text}" for body in loaders for text in asserted(body))
        yield from dict.fromkeys(f"graph {text}" for body in made for text in asserted(body))


def main() -> None:
    """Print the list."""
    archive = sys.argv[1]
    version = re.search(r"xllamacpp-[\d.]*\.(\d+)\.tar\.gz$", archive)
    if version is None:
        raise SystemExit("the source distribution of xllamacpp, please")
    print(HEAD.format(archive=archive.rpartition("/")[2], version=f"b{version[1]}"), end="")
    for line in lines(dict(sources(archive))):
        print(line)


if __name__ == "__main__":
    main()
