"""What the server says of weights is what the library says of the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import httpx
import numpy as np

import ggferry
from helpers.server import Server, ended, submitted


def test_two_models_are_compared_and_a_tensor_is_counted(server: Server, client: httpx.Client, root: Path) -> None:
    (one,) = submitted(client, root / "old.bin", verify="none")
    (other,) = submitted(client, root / "old.bin", verify="none", outtype="f16")
    first, second = (Path(ended(client, job)["output"]) for job in (one, other))
    found = client.get(f"/models/{one}/difference", params={"other": other}).json()
    wanted = ggferry.diff(str(first), str(second))
    assert found["differs"] and found["looked"] and not found["by_roles"]
    assert [each["name"] for each in found["tensors"]] == [each.name for each in wanted.tensors]
    assert [each["key"] for each in found["keys"]] == [each.key for each in wanted.keys]
    headers = client.get(f"/models/{one}/difference", params={"other": other, "data": False}).json()
    assert not headers["looked"]
    assert client.get(f"/models/{one}/difference", params={"other": one}).status_code == 422

    tensor = next(each for each in gguf.GGUFReader(second).tensors if each.tensor_type.name == "F16")
    values = np.asarray(tensor.data, np.float64)
    counted = client.get(f"/models/{other}/histogram", params={"tensor": tensor.name}).json()
    assert (counted["elements"], sum(counted["counts"])) == (values.size, values.size)
    assert (counted["smallest"], counted["largest"]) == (values.min(), values.max())
    page = httpx.get(f"{server.url}/models/{other}/histogram", params={"tensor": tensor.name}, headers=client.headers)
    assert page.text.count("<rect") >= sum(1 for each in counted["counts"] if each)
    assert client.get(f"/models/{other}/histogram", params={"tensor": "no"}).status_code == 404
    source = client.get(f"/models/{one}/inspection").json()
    assert source["container"] == "ggjt"


def test_an_infinite_error_is_shown(server: Server, client: httpx.Client, root: Path, fixtures: Path) -> None:
    """Of a matrix of zeros every change is infinitely large, for which JSON has no number."""
    import torch
    from safetensors.torch import load_file, save_file

    folders = []
    for name in ("zeros", "ones"):
        folder = root / name
        shutil.copytree(fixtures / "hf" / "ckpt" / "llama", folder)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.mlp.up_proj.weight"] = getattr(torch, name)(96, 64)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        folders.append(folder)
    (one,), (other,) = (submitted(client, folder, verify="none") for folder in folders)
    assert [ended(client, job)["state"] for job in (one, other)] == ["done", "done"]
    found = client.get(f"/models/{one}/difference", params={"other": other}).json()
    assert [each["relative_rms"] for each in found["tensors"]] == ["inf"]
    page = httpx.get(f"{server.url}/models/{one}/difference", params={"other": other}, headers=client.headers)
    assert page.status_code == 200 and ">inf<" in page.text
