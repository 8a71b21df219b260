"""Compute what a GGUF file makes of texts with llama.cpp, in the build of PyPI's xllamacpp: a vector, or scores, each.

The server's embeddings are asked for, with attention that is not fused.
"""

from __future__ import annotations

from importlib import metadata

import numpy as np
import xllamacpp
from worker_protocol import Answer, CannotRun, Job, Refused, answer, reason


def main(job: Job) -> Answer:
    """Return the build, a row for every prompt, and no facts."""
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding = job["model"], True
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 256, 1, 0, False, 1
    params.fit_params, params.no_extra_bufts = False, True
    params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{job['pooling']}")
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # F16 by default
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        raise Refused(f"it does not load the file{reason()}") from None
    rows = []
    for prompt in job["prompts"]:
        answer = server.handle_embeddings({"input": prompt["tokens"], "embd_normalize": -1})
        if "data" not in answer:
            raise CannotRun(f"it makes no vector of a text: {str(answer)[:200]}")
        found = answer["data"][0]["embedding"][: job["count"]]  # behind a classifier's scores lies what was there
        rows.append(np.array(found, np.float32)[None])
    return "b" + metadata.version("xllamacpp").rpartition(".")[2], rows, {}


if __name__ == "__main__":
    answer(main)
