"""The estimate of the cache against what llama.cpp itself allocates and prints."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ggferry.converters.analysis.kv_cache import cache, keys_of
from ggferry.converters.understand import graph_of
from helpers.tiny_models import make, write

PROGRAM = """
import os, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 1, 0, False, 4
params.fit_params, params.no_extra_bufts, params.kv_unified = False, True, True
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + sys.argv[3].upper())
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
xllamacpp.Server(params)
os._exit(0)
"""
SIZE = re.compile(r"(llama_kv_cache|llama_memory_recurrent): size = +([\d.]+) MiB.*")
CASES = (
    ("llama", 20000, "f16"),
    ("llama head_dim", 20000, "f32"),
    ("gemma2", 20000, "f16"),
    ("gemma3", 20000, "f16"),
    ("gpt-oss", 20000, "f16"),
    ("deepseek v3", 20000, "f16"),
    ("mamba2", 4096, "f16"),
    ("mamba", 4096, "f16"),
    ("jamba", 20000, "f16"),
    ("falcon-h1", 20000, "f16"),
    ("lfm2", 20000, "f16"),
    ("qwen3next", 20000, "f16"),
    ("gemma4 shared", 20000, "f16"),
    ("granite hybrid", 20000, "f16"),
    ("nemotron-h", 20000, "f16"),
    ("kimi linear", 20000, "f16"),
    ("llama4 chunks", 20000, "f16"),
    ("cohere2", 20000, "f16"),
    ("mistral window", 20000, "f16"),
    ("qwen2 window", 20000, "f16"),
    ("phi3", 20000, "f16"),
    ("gpt2", 4096, "f16"),
    ("falcon 7b", 4096, "f16"),
    ("afmoe", 20000, "f16"),
)


def printed(path: Path, context: int, kind: str) -> tuple[float, float]:
    """MiB of keys and values, and of states, as llama.cpp says them; it is ended as soon as it has."""
    sums, said = {"llama_kv_cache": 0.0, "llama_memory_recurrent": 0.0}, []
    command = [sys.executable, "-c", PROGRAM, str(path), str(context), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        guard = threading.Timer(30, child.kill)
        guard.start()
        for line in child.stdout or ():
            said.append(line)
            if found := SIZE.search(line):
                sums[found[1]] += float(found[2])
            if "compute buffer size" in line:
                break
        guard.cancel()
        child.kill()
    assert any(sums.values()), "".join(said)[-2000:]
    return sums["llama_kv_cache"], sums["llama_memory_recurrent"]


QUICK = ("gpt-oss", "jamba")  # grouped heads and a window; states


@pytest.mark.parametrize(
    ("name", "context", "kind"),
    [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in CASES],
    ids=str,
)
def test_llama_cpp_allocates_what_is_estimated(name: str, context: int, kind: str, tmp_path: Path) -> None:
    make(name, tmp_path / "model")
    path = write(graph_of(str(tmp_path / "model")), tmp_path / "m.gguf")
    for source in (path, tmp_path / "model"):
        graph = graph_of(str(source))
        found = cache(graph.architecture.name, keys_of(graph), context, kind)
        wanted = printed(path, context, kind)
        assert (found.attention / 2**20, found.states / 2**20) == pytest.approx(wanted, abs=0.011), source
