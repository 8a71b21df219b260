"""A process that has loaded the heavy libraries and nothing of ggferry, and forks a child for every mistake to plant.

Run as a program: a job in JSON a line on stdin, its answer in JSON a line on stdout. A job has `task`, the name of a
function of `examined.py`, its `arguments`, and `planted`: [module, text as it stands, text in its place], by which the
child's own import of ggferry is changed, and nothing on disk.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

SECONDS = 180
"""For one job, on a machine that does much else."""
CLASSES = (
    "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2", "Gemma3", "StableLm",
    "Granite", "Cohere", "DeepseekV2", "DeepseekV3", "Mamba", "GPTNeoX", "Bloom", "Mpt",
)
TESTS = Path(__file__).resolve().parents[2]


class PatternError(Exception):
    """The text that a mistake takes the place of is not in the module, or not once."""


def patched(text: str, changes: Sequence[tuple[str, str]], module: str) -> str:
    """The source with each old text, which stands in it once, replaced. Raises PatternError."""
    for old, new in changes:
        if text.count(old) != 1:
            raise PatternError(f"{module} has {text.count(old)} times: {old}")
        text = text.replace(old, new)
    return text


class Loader(SourceFileLoader):
    """Compiles a module's changed source, past every cache."""

    def __init__(self, name: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self.changes = changes

    def get_code(self, fullname: str) -> CodeType:
        text = patched(Path(self.path).read_text(encoding="utf-8"), self.changes, fullname)
        return compile(text, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the modules that mistakes are planted in. `left`: those that nobody has imported yet."""

    def __init__(self, planted: Sequence[Sequence[str]]) -> None:
        self.changes: dict[str, list[tuple[str, str]]] = {}
        for module, old, new in planted:
            self.changes.setdefault(f"ggferry.{module}", []).append((old, new))
        self.left = set(self.changes)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        self.left.discard(fullname)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=Loader(fullname, spec.origin, self.changes[fullname])
        )


def work(job: dict[str, Any]) -> dict[str, Any]:
    """What the task answers, in the child."""
    finder = Finder(job.get("planted", ()))
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(TESTS))
    answer: dict[str, Any] = getattr(importlib.import_module("laws.mutations.examined"), job["task"])(*job["arguments"])
    if finder.left:
        raise PatternError(f"nobody imports {', '.join(finder.left)}")
    return answer


def child(job: dict[str, Any], out: int) -> None:
    """Answer into `out` and end."""
    try:
        answer = work(job)
    except BaseException:
        answer = {"crash": traceback.format_exc()[-1500:]}
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(out, data) :]
    os._exit(0)


def forked(job: dict[str, Any]) -> dict[str, Any]:
    """The child's answer; a crash or a hang is one, too."""
    into, out = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(into)
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(quiet, standard)
        child(job, out)
    os.close(out)
    data = b""
    while select.select([into], [], [], SECONDS)[0]:
        if not (piece := os.read(into, 1 << 16)):
            break
        data += piece
    os.close(into)
    os.killpg(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return json.loads(data) if data else {"crash": "its process ended without a word, or took too long"}


def load() -> None:
    """Everything of others that a child may use; models' classes are read at first use, so they are named."""
    import sentencepiece
    import tokenizers
    import torch
    import transformers
    import xllamacpp

    assert sentencepiece and tokenizers and xllamacpp
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in CLASSES:
        assert getattr(transformers, f"{name}ForCausalLM"), name
    assert not [name for name in sys.modules if name.startswith("ggferry.")]


if __name__ == "__main__":
    load()
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)
