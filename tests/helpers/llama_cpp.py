"""A current llama.cpp (PyPI xllamacpp) as a witness: loads a file and continues a prompt greedily."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import xllamacpp
for path in sys.argv[5:]:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_gpu_layers = int(sys.argv[4]), 1, 0
    params.warmup, params.verbosity = False, -1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # F16 by default
    kinds = xllamacpp.llama_flash_attn_type  # whose sums are F16
    chosen = "ENABLED" if sys.argv[3] == "1" else "DISABLED"
    params.flash_attn_type = getattr(kinds, f"LLAMA_FLASH_ATTN_TYPE_{chosen}")
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server, prompt, found = xllamacpp.Server(params), json.loads(sys.argv[1]), []
    for _ in range(int(sys.argv[2])):  # one at a time: tokens that are no whole characters would come merged
        answer = server.handle_completions({"prompt": prompt, "max_tokens": 1, "temperature": 0, "n_probs": 1})
        if not answer["choices"][0]["logprobs"]:  # the end-of-sequence token has no text and no entry
            break
        token = answer["choices"][0]["logprobs"]["content"][0]
        found.append([token["id"], token["logprob"]])
        prompt.append(token["id"])
    print("ANSWER", json.dumps(found))
"""


def continuations(
    prompt: list[int], count: int, *paths: Path, flash: bool = False, context: int = 128
) -> list[list[tuple[int, float]]]:
    """Greedy (token id, log-probability) pairs for each file, to the end of sequence; by one process that may not
    crash."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(prompt), str(count), str(int(flash)), str(context)]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == len(paths), done.stderr[-2000:]
    return [[tuple(pair) for pair in json.loads(line.removeprefix("ANSWER "))] for line in lines]


DRAFTING = """
import json, sys
import xllamacpp
target, draft, kind, most, count = sys.argv[2:7]
params = xllamacpp.CommonParams()
params.model.path = target
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 128, 1, 0, False, 5
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
own = params.speculative.draft
params.speculative.types = [getattr(xllamacpp.common_speculative_type, "COMMON_SPECULATIVE_TYPE_DRAFT_" + kind)]
own.mparams.path, own.n_max, own.n_min, own.p_min, own.n_gpu_layers = draft, int(most), 0, 0.0, 0
for one in (params, own):
    one.cache_type_k = one.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
answer = server.handle_completions(
    {"prompt": json.loads(sys.argv[1]), "max_tokens": int(count), "temperature": 0, "ignore_eos": True}
)
print("ANSWER", json.dumps(answer["timings"]))
"""
CANDIDATE = re.compile(rb"draft candidate +(\d+), pos +(\d+): +(\d+) \( *([0-9.]+)\)")


def draft_candidates(
    prompt: list[int], count: int, target: Path, draft: Path, kind: str, most: int
) -> tuple[list[dict[tuple[int, int], tuple[int, float]]], int]:
    """What a draft beside its target proposes: for each time it is asked, (rank, position) → (token id, probability of
    the ten likeliest), as llama.cpp's own log states them; and how many proposals the target took."""
    command = [sys.executable, "-c", DRAFTING, json.dumps(prompt), str(target), str(draft), kind, str(most), str(count)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    line = next((line for line in done.stdout.splitlines() if b"ANSWER " in line), b"")
    assert line, done.stderr[-2000:].decode(errors="replace")
    steps: list[dict[tuple[int, int], tuple[int, float]]] = []
    for rank, place, token, probability in CANDIDATE.findall(done.stdout + done.stderr):
        at = int(rank), int(place)
        if not steps or at in steps[-1]:
            steps.append({})
        steps[-1][at] = int(token), float(probability)
    taken = re.search(rb'"draft_n_accepted": (\d+)', done.stdout)
    assert taken is not None
    return steps, int(taken[1])
