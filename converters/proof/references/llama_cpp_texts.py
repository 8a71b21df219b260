"""Ask llama.cpp what it makes of sample texts, and compare that with what our rules foretell."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.references.child_process import ask
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.references.llama_cpp import NAME, link_model
from ggferry.converters.tokenizers.in_llama_cpp import PROBES, runtime
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder

SOME = 6  # differences that are named


def testify(output: ModelGraph, before: Iterable[CrossCheck]) -> tuple[CrossCheck, ...]:
    """Return what llama.cpp makes of sample texts.

    Nothing is returned where llama.cpp is not among those compared `before`.
    """
    if not any(check.witness == NAME and check.why is None for check in before):
        return ()
    tokenizer = Tokenizer.from_kv(output.checkpoint.metadata)
    texts = {f"sample {number}": text for number, text in enumerate(TEXTS)} | PROBES
    texts = {name: text for name, text in texts.items() if "\0" not in text}
    with tempfile.TemporaryDirectory(prefix="ggferry-witness-") as folder:
        job = {"given": {}, "texts": texts, "model": link_model(output, folder), "prompts": []}
        answer = ask("llama_cpp_chat", job, folder, output.checkpoint.nbytes)
    if answer.why is not None:
        return (CrossCheck(NAME, what="texts", side="output", why=answer.why),)
    theirs, own = runtime(tokenizer), encoder(tokenizer)
    foretold = {
        name: own.encode(text, bos=False) if theirs is None else theirs.encode(text) for name, text in texts.items()
    }
    apart = [name for name in texts if answer.facts["ids"][name] != foretold[name]]
    check = CrossCheck(
        NAME,
        answer.version,
        "texts",
        "output",
        count=len(texts) - len(apart),
        missed=tuple(f"it cuts {texts[name]!r:.60} otherwise than foretold" for name in apart[:SOME]),
    )
    return (check,)
