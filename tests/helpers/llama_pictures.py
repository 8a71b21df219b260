"""llama.cpp's server with both files of a model that sees, in a process of its own: its answers to pictures."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def answers(model: Path | str, mmproj: Path | str, pictures: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The answer to each picture `(height, width, 3)` of bytes, with the log-probabilities of its first token."""
    given = json.dumps([_url(picture) for picture in pictures])
    words = [sys.executable, __file__, str(model), str(mmproj)]
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(lines[0].removeprefix("ANSWERS "))
    return found


def _url(picture: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _serve(model: str, mmproj: str, urls: Sequence[str]) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path, params.mmproj_use_gpu = model, mmproj, False
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = 512, 1, 0, False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.chat_template, params.use_jinja = "chatml", False
    server = xllamacpp.Server(params)
    asked = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 5}
    found = [server.handle_chat_completions({**asked, "messages": [_message(url)]}) for url in urls]
    print("ANSWERS", json.dumps(found), flush=True)
    os._exit(0)  # a server that is taken down as soon as it stands may wait for itself


def _message(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"role": "user", "content": parts}


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], json.loads(sys.stdin.read()))
