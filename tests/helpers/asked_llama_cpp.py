"""llama.cpp about a file, in a child process that an assertion may end: whether it computes what our forward pass
does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand

CLOSE = 3e-3
"""Relative RMS of log-probabilities; llama.cpp computes GELU by a table of float16."""
LEAST = -60.0
"""Log-probability that no smaller one is distinguished from: llama.cpp states the logarithm of a float32."""
SCRIPT = """
import json, secrets, sys
import xllamacpp
path, prompts, count, word = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 256, 1, 0, False, -1
params.fit_params, params.no_extra_bufts, params.api_keys = False, True, [secrets.token_hex(16)]
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server, rows = xllamacpp.Server(params), []
for prompt in prompts:  # a token that has a text is made likely, without which nothing is stated
    said = server.handle_completions({"prompt": prompt, "max_tokens": 1, "temperature": 0, "n_probs": count,
                                      "logit_bias": [[word, 1e3]]})
    found = {one["id"]: one["logprob"] for one in said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    rows.append([found[token] for token in range(count)])
print("ANSWER", json.dumps(rows))
"""


def alike(path: Path, tokens: list[int], output: np.ndarray | None = None) -> str:
    """'alike' or 'otherwise', by the log-probabilities of all tokens in the middle and at the end of a text; 'dies'
    where llama.cpp does not load the file or ends. `output`: the matrix by which it makes logits of states."""
    file = open_checkpoint(str(path))
    logits = forward(understand(file), tokens).astype(np.float64)
    logits = logits if output is None else logits @ output.astype(np.float64).T
    logits = logits - logits.max(-1, keepdims=True)
    ours = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ends = (len(tokens) // 2, len(tokens))
    pieces = file.metadata["tokenizer.ggml.tokens"].data
    kinds = file.metadata["tokenizer.ggml.token_type"].data
    words = (n for n, text in enumerate(pieces) if kinds[n] == 1 and text.lstrip("▁Ġ").isascii() and text.isalnum())
    word = next(words, 270)
    texts = json.dumps([tokens[:end] for end in ends])
    command = [sys.executable, "-c", SCRIPT, str(path), texts, str(ours.shape[1]), str(word)]
    quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # else it asks a debugger where it ended
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=quiet)
    said = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if not said:
        assert done.returncode < 0 or "Failed to init server" in done.stderr, done.stderr[-2000:]
        return "dies"
    for end, row in zip(ends, json.loads(said[0].removeprefix("ANSWER ")), strict=True):
        mine, theirs = (np.maximum(one, LEAST) for one in (ours[end - 1], row))
        mine, theirs = mine - mine.mean(), theirs - theirs.mean()
        if np.sqrt(np.mean((theirs - mine) ** 2) / np.mean(mine**2)) > CLOSE:
            return "otherwise"
    return "alike"
