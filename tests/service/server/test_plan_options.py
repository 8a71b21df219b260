"""Options of lists in a plan over HTTP: what they say is in the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

from helpers.builders import Llama
from helpers.server import ended, planned, submitted


def test_types_of_some_tensors_are_planned_and_made(client: httpx.Client, root: Path) -> None:
    own = Llama(n_ff=384, kind="F16", container="ggjt", version=1).write(root / "types.bin")
    types = ["attn_v=f32", "ffn_(up|down)=bf16"]
    (job,) = submitted(client, own, verify="fast", outtype="f16", tensor_types=types)
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(found["output"]).tensors}
    assert kinds["blk.0.attn_v.weight"] == "F32" and kinds["blk.1.ffn_up.weight"] == "BF16"
    assert kinds["blk.0.attn_q.weight"] == "F16"
    options = client.get(f"/jobs/{job}/receipt").json()["options"]
    assert ["=".join(pair).lower() for pair in options["tensor_types"]] == types


def test_shards_metadata_and_a_recipe_are_planned_and_made(client: httpx.Client, root: Path) -> None:
    own = Llama(kind="F16", container="ggjt", version=1).write(root / "shards.bin")
    recipe = ["recipe of-a-test", "default F16", "ffn_down -> Q8_0"]
    options: dict[str, Any] = {
        "outtype": "f16",
        "split_max_tensors": 7,
        "tensor_first_split": False,
        "recipe": recipe,
        "metadata": {"general.license": "mit", "general.tags": ["old", "small"]},
        "text": ["A line of its own.", "And another."],
    }
    plan = planned(client, own, **options)
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    first = Path(line["output"])
    count = int(first.stem[-5:])
    assert first.name == f"shards-F16-00001-of-{count:05}.gguf" and count > 2
    (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    names = [each["name"] for each in client.get(f"/jobs/{job}/files").json()]
    assert names == [f"shards-F16-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    shards = [gguf.GGUFReader(first.parent / name) for name in names]
    keys = shards[0].fields
    assert not shards[0].tensors and keys["general.license"].contents() == "mit"
    assert keys["general.tags"].contents() == ["old", "small"]
    kinds = {each.name: each.tensor_type.name for shard in shards for each in shard.tensors}
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0" and kinds["blk.0.attn_q.weight"] == "F16"
    receipt = client.get(f"/jobs/{job}/receipt").json()
    assert receipt["options"]["recipe_text"].split("\n") == recipe
    assert receipt["options"]["metadata"] == options["metadata"] and receipt["tokenizer"]["texts"] > 0
    assert client.post(f"/models/{job}/tokens", json={"text": "the cat"}).status_code == 200
    whole = b"".join(client.get(f"/jobs/{job}/files/{name}").content for name in names)
    assert len(whole) == found["bytes_out"] == sum(each["bytes"] for each in receipt["output"]["files"])
    assert client.delete(f"/jobs/{job}/files").status_code == 200 and not first.parent.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metadata": "/etc/passwd"}, "a JSON object"),
        ({"recipe": "/etc/passwd"}, "a list of the text's lines"),
        ({"text": "/etc/passwd"}, "a list of the text's lines"),
        ({"split_max_size": "many"}, "split_max_size"),
        ({"split_max_tensors": -1}, "0 or more"),
        ({"metadata": {"general.licence": "mit"}}, "general.license"),
        ({"recipe": ["default Q9_9"]}, "Q9_9"),
    ],
)
def test_values_that_are_none_are_refused_before_a_plan(
    client: httpx.Client, root: Path, options: dict[str, Any], words: str
) -> None:
    answer = client.post("/plans", json={"source": str(root / "old.bin"), "options": options})
    assert answer.status_code == 422, answer.text
    assert words in answer.text
