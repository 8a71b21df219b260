"""What the workshop's children do: make models, and convert them with every witness asked, to see who notices.

Nothing here is imported by the workshop itself: it comes with ggferry, in which a mistake is planted by then.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from blake3 import blake3
from laws.mutations.models import MODELS
from safetensors.torch import load_file

from ggferry.converters.adapters.plan import AdapterPlan
from ggferry.converters.conversion.plan import plan_conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options, Plan
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof import runtime_keys
from ggferry.converters.proof.references import child_process
from ggferry.converters.proof.runtime_notes import unexplained
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from helpers import packed_fp8_gptq, packed_further, packed_kernels, packed_others, quantized_llama, tiny_pocket_tts
from helpers.next_tokens import predicting
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import make, relative

STAGES = {
    "check_metadata": "keys", "check_hparams": "keys", "compare_keys": "keys", "check_accounting": "accounting",
    "check_decoders": "decoders", "check_settings": "second reader", "check_order": "second reader",
    "_read_alike": "second reader", "_matrices": "second reader", "_named_alike": "second reader",
    "_complete": "second reader",
    "check_tensor": "tensors", "check_all_logits": "logits", "check_tokenizer": "vocabulary", "examine": "witness",
    "plan_conversion": "reading", "understand": "reading", "prove_adapter": "adapter",
}
"""Functions, and what an error that they raise shows; the innermost counts."""
DRAFTING = "drafting "
RECORDED = 2e-6
"""Relative RMS to logits that the programs of 2023 computed, as tests/converters/legacy/test_llama.py has it."""
CODES_OF_SOUND = [5, 17, 399, 90, 401, 441, 8, 262, 447, 12, 0, 333]
"""What `helpers/make_qwen3_tts_fixtures.py` computes logits of."""
POCKET_TTS = "pocket tts"
SECONDS = 30
"""For a witness, who needs one; a mistake may ask for ever."""


def make_model(name: str, path: str) -> dict[str, Any]:
    """A model of `models.MODELS` with a vocabulary, made by transformers or copied from the fixtures."""
    model = MODELS[name]
    if model.kind.startswith("fixtures/"):
        found = FIXTURES.parent / model.kind
        (shutil.copytree if found.is_dir() else shutil.copy)(found, path)
        return {}
    if model.kind == POCKET_TTS:
        tiny_pocket_tts.write(Path(path))
        return {}
    if model.kind.startswith("packed "):
        _packed(model.kind.removeprefix("packed "), Path(path))
        return {}
    if model.kind == "torch views":
        _views(FIXTURES / "hf/ckpt/llama", Path(path))
        return {}
    made = predicting if model.kind.startswith(DRAFTING) else make
    made(model.kind.removeprefix(DRAFTING), Path(path), vocab_size=400, **model.changes)
    for file in (FIXTURES / "tokenizers" / "bpe_llama3").iterdir():
        shutil.copy(file, path)
    _edit(Path(path) / "config.json", model.edits)
    _edit(Path(path) / "tokenizer_config.json", {"chat_template": "{{ messages[0].content }}."})
    return {}


def _packed(case: str, folder: Path) -> None:
    """A tiny model whose matrices a scheme has packed."""
    cases = {**packed_fp8_gptq.CASES, **packed_further.CASES}
    more = (packed_further.BLOCKS, packed_others.CASES, packed_kernels.CASES)
    cases |= {name: each[:2] for named in more for name, each in named.items()}
    quantize, config = cases[case]
    quantized_llama.write(folder, quantized_llama.model(quantize)[0], config)


def _views(source: Path, folder: Path) -> None:
    """The checkpoint, saved by torch: every tensor lies within a larger storage, matrices are stored turned over."""
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    kept = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        rotated = tensor.t() if tensor.dim() == 2 else tensor
        storage = torch.cat([torch.ones(7, dtype=tensor.dtype), rotated.reshape(-1), torch.ones(5, dtype=tensor.dtype)])
        view = storage[7 : 7 + tensor.numel()].view(rotated.shape)
        kept[name] = view.t() if tensor.dim() == 2 else view
    torch.save(kept, folder / "pytorch_model.bin")


def _edit(path: Path, edits: Mapping[str, Any]) -> None:
    """Change keys of a JSON file; None takes one away. A null of the file stays: it says more than absence."""
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in edits}
    path.write_text(json.dumps(kept | {key: value for key, value in edits.items() if value is not None}))


def full_proof(name: str, source: str, out: str) -> dict[str, Any]:
    """Who notices while the model `name` at `source` is converted with `--verify full --witness auto`: `by`, the first
    whose word ends the conversion with an error, and `said`; `told`, what the list of the loader's keys says beside it.

    Where nobody does: whether the receipt is true, and whether the logits are those recorded in the fixtures.
    """
    setattr(child_process, "_run", _forked)  # noqa: B010  a fork of this process has the libraries already
    kind, base = MODELS[name].kind, str(FIXTURES / "hf/ckpt/llama") if name == "adapter" else None
    options = Options(outtype=MODELS[name].outtype)
    bare = VocabOptions(none=MODELS[name].kind.startswith(("packed ", "torch views")))
    request, told = (
        Request(source, out, options, jobs=1, witness=("auto",), force=True, base=base, mmproj="none", vocab=bare),
        "",
    )
    try:
        plan = plan_conversion(request, open_checkpoint(source)).outputs[0].plan
        told = _told(plan)
        result = convert(request)[0]
    except GgferryError as error:
        return {"by": _stage(error), "said": str(error), "told": told}
    silent = [check.note for check in result.proof.testimonies if check.why]
    by = _wrong_receipt(result.receipt, source, out) or _not_recorded(kind, source)
    return {"by": by, "said": "; ".join((result.lines[2], *filter(None, silent))), "told": told}


def _told(plan: Plan) -> str:
    """What the list of the loader's keys says of the plan, past what is known."""
    if isinstance(plan, AdapterPlan):
        return ""
    keys = {key: entry.value for key, entry in plan.metadata.items()}
    found = runtime_keys.check(plan.graph.architecture.name, keys, [step.name for step in plan.steps])
    notes = [note for note in plan.notes if not note.startswith("llama.cpp b")]
    return "; ".join(finding.text for finding in unexplained(found, (*plan.graph.notes, *notes)))


def _wrong_receipt(receipt: Mapping[str, Any], source: str, out: str) -> str | None:
    """'receipt' where it is not what BLAKE3 and gguf-py say of the files."""
    read = gguf.GGUFReader(out)
    types = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    keys = {key for key in read.fields if not key.startswith("GGUF.")}
    true = (
        {tensor["name"]: tensor["type"] for tensor in receipt["tensors"]} == types
        and set(receipt["metadata"]) == keys
        and receipt["output"]["files"][0]["blake3"] == _blake3(Path(out))
        and all(
            record["blake3"] == _blake3(_beside(source, record["name"]))
            for record in receipt["source"]["files"]
            if not record["name"].startswith("(computed")
        )
    )
    return None if true else "receipt"


def _beside(source: str, name: str) -> Path:
    return Path(source) / name if Path(source).is_dir() else Path(source)


def _blake3(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest()


def _not_recorded(kind: str, source: str) -> str | None:
    """'recorded' where our pass over the source does not give the logits that were recorded of it."""
    if kind == POCKET_TTS:
        found = forward(graph_of(source), tiny_pocket_tts.Shape().tokens)[:, :: tiny_pocket_tts.EVERY]
        return "recorded" if relative(tiny_pocket_tts.recorded()["plain"], found) > RECORDED else None
    if (publishers := FIXTURES.parent / kind / "logits.npz").exists():
        found = forward(graph_of(source), CODES_OF_SOUND)
        return "recorded" if relative(np.load(publishers)["plain"], found) > RECORDED else None
    kept = FIXTURES.parent / f"{kind}.logits_f64.npy"
    if not kept.exists():
        return None
    tokens = [int(token) for token in (FIXTURES / "legacy-llama/tokens16.txt").read_text().split()]
    return "recorded" if relative(np.load(kept), forward(graph_of(source), tokens)) > RECORDED else None


def _stage(error: GgferryError) -> str:
    """Who raised it."""
    trace, stage = error.__traceback__, "reading"
    while trace:
        stage = STAGES.get(trace.tb_frame.f_code.co_name, stage)
        trace = trace.tb_next
    return error.message.split(" ")[0] if stage == "witness" else stage


def _forked(program: str, folder: str, seconds: float) -> child_process.Answer | None:
    """In the place of `child_process._run`: the program in a fork of this process. Once in a while a fork of a process
    with threads hangs: it is tried again."""
    for _ in range(3):
        code = _once(program, folder)
        if code != -signal.SIGALRM:
            break
    return child_process.Answer(why=f"its process ended with {code}", refused=True) if code else None


def _once(program: str, folder: str) -> int:
    kept_open = os.pipe()
    number = os.fork()
    if number == 0:
        signal.alarm(SECONDS)
        os.chdir(folder)
        said = os.open("said.txt", os.O_WRONLY | os.O_CREAT)
        for theirs, ours in ((kept_open[0], 0), (said, 1), (said, 2)):
            os.dup2(theirs, ours)
        os.close(kept_open[1])
        sys.path.insert(0, child_process.PROGRAMS)
        sys.stdin = os.fdopen(0)
        try:
            runpy.run_path(f"{child_process.PROGRAMS}/{program}.py", run_name="__main__")
        finally:
            os._exit(3)
    os.close(kept_open[0])
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    os.close(kept_open[1])
    return code
