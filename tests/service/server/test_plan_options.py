"""Options of lists in a plan over HTTP: what they say is in the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest
from blake3 import blake3
from gguf import GGMLQuantizationType

import ggferry
from helpers.builders import Llama
from helpers.merged_adapters import assert_alike, converted, with_peft
from helpers.server import ended, planned, sent, submitted
from helpers.tiny_models import make

WIDE: dict[str, Any] = {"n_embd": 256, "n_head": 4, "n_head_kv": 4, "n_ff": 512, "kind": "F16"}
WIDE |= {"container": "ggjt", "version": 1}
"""Rows wide enough for the types of llama-quantize."""


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


@pytest.mark.slow
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


def test_an_adapter_of_an_upload_is_merged(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    """What PEFT itself merges, converted, has the same tensors."""
    make("llama", root / "merged" / "base")
    with_peft(root / "merged" / "base", tmp_path / "a", tmp_path / "theirs", target_modules=["q_proj", "down_proj"])
    names = ("adapter_config.json", "adapter_model.safetensors")
    upload = sent(client, {name: (tmp_path / "a" / name).read_bytes() for name in names}, purpose="option")
    lora = [f"upload:{upload['id']}:1"]
    base = root / "merged" / "base"
    (job,) = submitted(client, base, verify="fast", outtype="f32", no_vocab=True, lora=lora)
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    converted(tmp_path / "theirs", tmp_path / "theirs.gguf", level="fast")
    assert_alike(Path(found["output"]), tmp_path / "theirs.gguf")
    assert client.get(f"/jobs/{job}/receipt").json()["options"]["lora"] == [f"{upload['id']}:1"]


@pytest.mark.slow
def test_an_adapter_that_changed_makes_another_job(client: httpx.Client, root: Path) -> None:
    """Else its old output would pass for what was asked for."""
    base, adapter, options = root / "twice" / "base", root / "twice" / "adapter", {"verify": "fast", "no_vocab": True}
    make("llama", base)
    with_peft(base, adapter, None, 3, target_modules=["q_proj"])
    (first,) = submitted(client, base, lora=[str(adapter)], **options)
    assert ended(client, first)["state"] == "done"
    (before,) = client.get(f"/jobs/{first}/files").json()
    with_peft(base, adapter, None, 9, target_modules=["q_proj"])
    jobs = submitted(client, base, lora=[str(adapter)], **options)
    (second,) = {*jobs} - {first}
    assert "exists already" in ended(client, second)["error"]["message"]
    assert client.delete(f"/jobs/{first}").status_code == 204
    assert client.post(f"/jobs/{second}/retry").status_code == 200
    assert ended(client, second)["state"] == "done"
    (after,) = client.get(f"/jobs/{second}/files").json()
    assert before["blake3"] != after["blake3"]


def test_a_link_out_of_an_adapter_is_not_followed(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    make("llama", root / "linked" / "base")
    with_peft(root / "linked" / "base", tmp_path / "a", None, target_modules=["q_proj"])
    (root / "linked" / "adapter").mkdir()
    for path in (tmp_path / "a").iterdir():
        (root / "linked" / "adapter" / path.name).symlink_to(path)
    options = {"no_vocab": True, "lora": [str(root / "linked" / "adapter")]}
    plan = client.post("/plans", json={"source": str(root / "linked" / "base"), "options": options}).json()
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    assert line["verdict"] != "convert" and "link" in line["error"]["message"], line


def test_types_like_those_of_another_file(client: httpx.Client, root: Path) -> None:
    own = Llama(**WIDE).write(root / "for-like.bin")
    types = {"blk.0.attn_q.weight": GGMLQuantizationType.Q5_0, "blk.1.attn_q.weight": GGMLQuantizationType.Q8_0}
    other = gguf.GGUFWriter(root / "like.gguf", "llama")
    for name, kind in types.items():
        data = gguf.quantize(np.random.default_rng(3).normal(size=(256, 256)).astype("f4"), kind)
        other.add_tensor(name, data, raw_dtype=kind)
    other.write_header_to_file(), other.write_kv_data_to_file(), other.write_tensors_to_file(), other.close()
    plan = planned(client, own, verify="fast", outtype="q8_0", like=str(root / "like.gguf"))
    assert "like" not in plan["options"] and plan["options"]["recipe"][0] == "recipe    like-like"
    (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    kinds = {each.name: each.tensor_type for each in gguf.GGUFReader(found["output"]).tensors}
    assert {name: kinds[name] for name in types} == types
    body = {"source": str(own), "options": {"like": "/etc/passwd"}}
    assert client.post("/plans", json=body).status_code in (403, 422)


@pytest.mark.slow
def test_types_for_a_size(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    own = Llama(**WIDE).write(root / "for-a-size.bin")
    whole = planned(client, own, verify="fast", outtype="q8_0")["summary"]["bytes_out"]
    size = whole * 7 // 10
    plan = planned(client, own, verify="fast", target_size=size, among="q4_k,q5_k,q8_0")
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    assert line["bytes_out"] == size, line
    assert any("chosen when the weights are read" in note for note in line["notes"])
    (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    (file,) = client.get(f"/jobs/{job}/files").json()
    assert 0.85 * size < file["bytes"] <= size
    options = {"target_size": size, "among": "q4_k,q5_k,q8_0"}
    ggferry.convert(own, tmp_path / "own.gguf", verify="fast", **options)
    assert blake3((tmp_path / "own.gguf").read_bytes()).hexdigest() == file["blake3"], "the library's choice"
    both = {"target_bpw": 5, "outtype": "q8_0"}
    for odd, words in (({"target_size": 1000}, "no choice of types has this size"), (both, "decides the types")):
        refused = client.post("/plans", json={"source": str(own), "options": odd}).json()
        (line,) = client.get(f"/plans/{refused['id']}/lines").json()["items"]
        assert line["verdict"] == "unsupported" and words in line["error"]["message"], line
