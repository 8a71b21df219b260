"""Options of lists in a plan over HTTP: what they say is in the output."""

from __future__ import annotations

from pathlib import Path

import gguf
import httpx

from helpers.builders import Llama
from helpers.server import ended, submitted


def test_types_of_some_tensors_are_planned_and_made(client: httpx.Client, root: Path) -> None:
    own = Llama(n_ff=384, kind="F16", container="ggjt", version=1).write(root / "types.bin")
    types = ["attn_v=f32", "ffn_(up|down)=bf16"]
    (job,) = submitted(client, own, verify="fast", outtype="f16", tensor_types=types)
    found = ended(client, job)
    assert found["state"] == "done", found
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(found["output"]).tensors}
    assert kinds["blk.0.attn_v.weight"] == "F32" and kinds["blk.1.ffn_up.weight"] == "BF16"
    assert kinds["blk.0.attn_q.weight"] == "F16"
    options = client.get(f"/jobs/{job}/receipt").json()["options"]
    assert ["=".join(pair).lower() for pair in options["tensor_types"]] == types
