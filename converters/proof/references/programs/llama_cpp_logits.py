"""Compute what a GGUF file says of a few tokens with llama.cpp, in the build of PyPI's xllamacpp.

It gives the log-probabilities of all tokens after each wanted one, with caches of float32 and attention that is not
fused. Its server states probabilities only when the token it samples next has a text, so one token that has a text is
made more likely; the stated probabilities are those before that change.
"""

from __future__ import annotations

import secrets
from importlib import metadata
from typing import Any

import numpy as np
import xllamacpp
from worker_protocol import Answer, CannotRun, Job, Refused, answer, reason


def main(job: Job) -> Answer:
    """Return the build, the rows of every prompt, and no facts. Prompts of one context share a server."""
    version = "b" + metadata.version("xllamacpp").rpartition(".")[2]
    servers: dict[int, Any] = {}
    rows = []
    for prompt in job["prompts"]:
        context = prompt["context"]
        if context not in servers:
            servers.clear()
            servers[context] = server(job, context)
        found = [probabilities(servers[context], job, prompt["tokens"][: row + 1]) for row in prompt["rows"]]
        rows.append(np.array(found, np.float32))
    return version, rows, {}


def server(job: Job, context: int) -> Any:
    """Start the model in a server that nobody else can use."""
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = context, 1, 0, False, 1
    params.fit_params, params.no_extra_bufts, params.api_keys = False, True, [secrets.token_hex(16)]
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # F16 by default
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # its sums are F16
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    try:
        return xllamacpp.Server(params)
    except RuntimeError:
        raise Refused(f"it does not load the file{reason()}") from None


def probabilities(model: Any, job: Job, tokens: list[int]) -> list[float]:
    """Return the log-probabilities of all tokens after `tokens`, by id."""
    answer = model.handle_completions(
        {
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 0,
            "n_probs": job["n_vocab"],
            "logit_bias": [[job["letter"], 1e3]],
        }
    )
    if "choices" not in answer:
        raise CannotRun(f"it does not continue a text: {str(answer)[:200]}")
    content = (answer["choices"][0].get("logprobs") or {}).get("content") or [{}]
    found = {item["id"]: item["logprob"] for item in content[0].get("top_logprobs", ())}
    if len(found) != job["n_vocab"]:
        raise CannotRun(f"it gave the probabilities of {len(found)} of {job['n_vocab']} tokens")
    return [found[token] for token in range(job["n_vocab"])]


if __name__ == "__main__":
    answer(main)
