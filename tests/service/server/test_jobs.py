"""From a file to a proved file, over a real socket."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
from gguf import GGUFReader

from helpers.server import ended, planned, sent, submitted


def test_a_file_of_a_root_becomes_a_proved_file(client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="fast")
    assert ended(client, job)["state"] == "done"
    receipt = client.get(f"/jobs/{job}/receipt").json()
    (file,) = client.get(f"/jobs/{job}/files").json()
    data = client.get(file["url"].removeprefix("/api/v1")).content
    assert hashlib.sha256(data).hexdigest() == file["sha256"] == receipt["output"]["files"][0]["sha256"]


def test_an_upload_becomes_a_proved_file(client: httpx.Client, root: Path) -> None:
    upload = sent(client, {"models/old.bin": (root / "old.bin").read_bytes()})
    assert upload["state"] == "accepted", upload
    (job,) = submitted(client, upload["source"], verify="fast", outtype="q8_0", allow_requantize=True)
    assert ended(client, job)["state"] == "done"


def test_a_file_becomes_outputs_of_several_types(client: httpx.Client, root: Path) -> None:
    asked = {"verify": "fast", "outtype": "q8_0,f16", "allow_requantize": True}
    plan = planned(client, root / "old.bin", **asked)
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    assert [each["outtype"] for each in line["further"]] == ["f16"] and "f16" in plan["summary"]["bytes_of_types"]
    answer = client.get(f"/models/{line['id']}/conversion").json()
    assert {t["type"] for t in answer["tensors"]} >= {"Q8_0"} and "F16" in {
        t["type"] for t in answer["further"][0]["tensors"]
    }
    pages, signed = str(client.base_url).removesuffix("/api/v1/"), dict(client.headers)
    shown = httpx.get(f"{pages}/plans/{plan['id']}/models/{line['id']}", headers=signed)
    assert shown.status_code == 200 and "<h4>q8_0</h4>" in shown.text and "<h4>f16</h4>" in shown.text
    (job,) = submitted(client, root / "old.bin", **asked)
    done = ended(client, job)
    told = httpx.get(f"{pages}/models/{job}", headers=signed).text
    assert told.count("/receipt?file=") == 2
    assert done["state"] == "done" and done["outputs"] == [line["output"], line["further"][0]["output"]]
    names = [Path(output).name for output in done["outputs"]]
    files = client.get(f"/jobs/{job}/files").json()
    assert [each["name"] for each in files] == names and sum(each["bytes"] for each in files) == done["bytes_out"]
    for file, name in zip(files, ("q8_0", "f16"), strict=True):
        data = client.get(file["url"].removeprefix("/api/v1")).content
        assert hashlib.sha256(data).hexdigest() == file["sha256"]
        receipt = client.get(f"/jobs/{job}/receipt", params={"file": file["name"]}).json()
        assert receipt["options"]["outtype"] == name and receipt["output"]["files"][0]["sha256"] == file["sha256"]
        assert "further" not in receipt
    whole = client.get(f"/jobs/{job}/receipt").json()
    assert [each["options"]["outtype"] for each in (whole, *whole["further"])] == ["q8_0", "f16"]
    assert client.get(f"/jobs/{job}/receipt", params={"file": "no"}).status_code == 404
    refused = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]})
    assert refused.status_code == 422 and names[1] in refused.json()["expected"]
    changed = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"], "file": names[1]})
    assert changed.status_code == 201, changed.text
    (file,) = client.get(f"/jobs/{changed.json()['id']}/files").json()
    assert file["name"] == names[1] and abs(file["bytes"] - files[1]["bytes"]) < 1000
    (model,) = [each for each in client.get("/report").json()["models"] if each["id"] == job]
    assert [each["outtype"] for each in model["outputs"]] == ["q8_0", "f16"]
    odd = client.post("/plans", json={"source": str(root / "old.bin"), "options": {"outtype": "f16,F16"}})
    assert odd.status_code == 422 and "each once" in odd.json()["expected"]


def test_keys_of_a_finished_file_are_edited(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="fast")
    ended(client, job)
    before = client.get(f"/jobs/{job}/files").json()[0]["sha256"]
    answer = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]})
    assert answer.status_code == 201, answer.text
    edited = answer.json()["id"]
    assert client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]}).json()["id"] == edited
    (file,) = client.get(f"/jobs/{edited}/files").json()
    (tmp_path / "new.gguf").write_bytes(client.get(file["url"].removeprefix("/api/v1")).content)
    fields = GGUFReader(tmp_path / "new.gguf").fields
    assert bytes(fields["general.name"].parts[-1]) == b"Mine"
    assert client.get(f"/jobs/{job}/files").json()[0]["sha256"] == before
    bad = client.post(f"/jobs/{job}/edit", json={"set": ["llama.context_length=long"]})
    assert (bad.status_code, bad.json()["code"]) == (422, "usage_error")
    assert client.get(f"/models/{edited}/inspection").json()["container"] == "gguf"
