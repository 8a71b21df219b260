"""What is removed and what it leaves: files past their days, quotas, jobs, and whose they are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggferry.service.server.settings import Settings
from ggferry.service.server.state import Service, open_service
from helpers.builders import Llama
from helpers.server import Server, ended, made_token, planned, sent, submitted


@pytest.fixture
def own(root: Path, request: pytest.FixtureRequest) -> Path:
    """A model that no other test has."""
    number = sum(map(ord, request.node.name)) % 97
    return Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1).write(
        root / f"{request.node.name[:60].replace('[', '-').rstrip(']')}.bin"
    )


@pytest.fixture
def kept(server: Server) -> Iterator[Service]:
    """The server's data as another service sees it that keeps outputs for no time at all."""
    roots = (str(server.data.parent / "root"),)
    service = open_service(Settings(str(server.data), roots, keep_outputs=0.0, jobs=0))
    yield service
    service.drain()


def test_files_past_their_days_are_made_again_by_planning_again(
    server: Server, client: httpx.Client, own: Path, kept: Service
) -> None:
    (job,) = submitted(client, own, verify="none")
    output = Path(ended(client, job)["output"])
    kept.housekeeper.round()
    found = client.get(f"/jobs/{job}").json()
    assert not output.exists() and found["state"] == "expired", found
    assert found["error"]["class"] == "Expired" and not found["has_receipt"]
    assert client.get(f"/jobs/{job}/files").status_code == 409
    assert job in [each["id"] for each in client.get("/models", params={"state": "expired"}).json()["items"]]
    assert client.get("/totals").json()["states"]["expired"] >= 1
    page = httpx.get(f"{server.url}/models/{job}", headers=client.headers).text
    assert "Download" not in page and "files removed" in page
    assert submitted(client, own, verify="none") == [job]
    assert ended(client, job)["state"] == "done" and output.exists()


def test_a_quota_falls_when_files_go_and_what_is_done_costs_nothing(
    server: Server, client: httpx.Client, own: Path
) -> None:
    size = planned(client, own, verify="none")["summary"]["bytes_out"]
    mine = server.client(made_token(server.data, "carol", "submit", quota=size * 3 // 2))
    (job,) = submitted(mine, own, verify="none")
    ended(mine, job)
    assert mine.get("/usage").json()["used"] == size
    assert submitted(mine, own, verify="none") == [job], "submitting again what is done costs nothing"
    over = mine.post("/jobs", json={"plan": planned(mine, own, verify="none", outtype="f32")["id"]})
    assert over.status_code == 409 and "quota" in over.json()["detail"]
    assert mine.delete(f"/jobs/{job}/files").json()["state"] == "expired"
    assert mine.get("/usage").json()["used"] == 0
    assert submitted(mine, own, verify="none") == [job]
    ended(mine, job)
    assert mine.delete(f"/jobs/{job}").status_code == 204
    assert mine.get("/usage").json()["used"] == 0 and mine.get(f"/jobs/{job}").status_code == 404


def test_planning_is_not_owning(server: Server, own: Path) -> None:
    """Bob plans what alice planned and converted: it stays hers, and he may neither end nor remove it."""
    alice, bob, boss = (
        server.client(made_token(server.data, name, scope))
        for name, scope in (("alice", "submit"), ("bob", "submit"), ("boss", "admin"))
    )
    (job,) = submitted(alice, own, verify="none")
    found = ended(alice, job)
    assert (found["asked_by"], found["asked"] <= found["started"] <= found["finished"]) == ("alice", True)
    size = alice.get("/usage").json()["used"]
    assert submitted(bob, own, verify="none") == [job]
    assert (alice.get("/usage").json()["used"], bob.get("/usage").json()["used"]) == (size, 0)
    assert bob.get(f"/jobs/{job}").json()["asked_by"] == "alice"
    for method, path in (("DELETE", ""), ("DELETE", "/files"), ("POST", "/cancel"), ("POST", "/retry")):
        answer = bob.request(method, f"/jobs/{job}{path}")
        assert (answer.status_code, answer.json()["code"]) == (403, "not_yours"), answer.text
    told = bob.post("/jobs/bulk", json={"action": "delete", "jobs": [job]}).json()
    assert told["done"] == [] and "alice" in told["refused"][job]
    upload = sent(alice, {"own.bin": own.read_bytes()})
    assert bob.delete(f"/uploads/{upload['id']}").status_code == 404
    assert boss.delete(f"/uploads/{upload['id']}").status_code == 204
    told = boss.post("/jobs/bulk", json={"action": "delete", "jobs": [job, "0" * 32]}).json()
    assert told["done"] == [job] and list(told["refused"]) == ["0" * 32]


def test_what_is_only_planned_is_removed_from_the_archive(client: httpx.Client, own: Path) -> None:
    plan = planned(client, own, verify="none", outtype="bf16")
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    assert client.delete(f"/jobs/{line['id']}").status_code == 204
    assert client.get(f"/jobs/{line['id']}").status_code == 404
    (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
    assert ended(client, job)["state"] == "done", "the plan can still be carried out"


def test_a_model_that_was_skipped_gives_the_files_of_the_one_that_did_the_same(client: httpx.Client, own: Path) -> None:
    (job,) = submitted(client, own, verify="none", outtype="f16")
    ended(client, job)
    copy = own.with_name("twin-of-" + own.name)
    copy.write_bytes(own.read_bytes())
    (same,) = submitted(client, copy, verify="none", outtype="f16")
    assert ended(client, same)["state"] == "skipped"
    assert client.get(f"/jobs/{same}/receipt").json() == client.get(f"/jobs/{job}/receipt").json()
    ((file,), (made,)) = client.get(f"/jobs/{same}/files").json(), client.get(f"/jobs/{job}/files").json()
    assert {**file, "url": ""} == {**made, "url": ""}
    whole = client.get(f"/jobs/{same}/files/{file['name']}")
    assert hashlib.sha256(whole.content).hexdigest() == made["sha256"]
    assert client.delete(f"/jobs/{same}").status_code == 204
    assert client.get(made["url"].removeprefix("/api/v1")).status_code == 200, "the other's file stays"
    os.unlink(copy)


def test_a_model_that_is_the_same_as_one_that_is_removed_is_not_converted_in_its_place(
    client: httpx.Client, own: Path, kept: Service
) -> None:
    (job,) = submitted(client, own, verify="none")
    ended(client, job)
    copy = own.with_name("copy-of-" + own.name)
    copy.write_bytes(own.read_bytes())
    (same,) = submitted(client, copy, verify="none")
    assert ended(client, same)["state"] == "skipped"
    assert client.delete(f"/jobs/{job}").status_code == 204
    kept.store.reclaim()
    assert client.get(f"/jobs/{same}").json()["state"] == "expired"
    os.unlink(copy)


def test_a_job_that_goes_on_is_not_removed(kept: Service, client: httpx.Client, own: Path) -> None:
    plan = planned(client, own, verify="none")
    row: dict[str, Any] = {"id": "a" * 32, "source": str(own), "entry": {"verdict": "convert"}, "state": "queued"}
    kept.store.register(plan["id"][::-1], [row])  # type: ignore[list-item]
    kept.store.put(kept.store.t.models, id="a" * 32, plan=plan["id"], source=str(own), verdict="convert")
    answer = client.delete(f"/jobs/{'a' * 32}")
    assert (answer.status_code, answer.json()["code"]) == (409, "refused_error")
    assert client.post(f"/jobs/{'a' * 32}/cancel").json()["state"] == "cancelled"
    assert client.get("/models", params={"state": "skipped", "q": own.name}).json()["total"] == 0
    assert client.delete(f"/jobs/{'a' * 32}").status_code == 204


def test_files_that_are_no_models_are_no_jobs(client: httpx.Client, root: Path, own: Path) -> None:
    """Notes beside a model: the ids that are answered are those of jobs that can be asked for."""
    folder = root / "with-notes"
    folder.mkdir()
    (folder / "m.bin").write_bytes(own.read_bytes())
    (folder / "notes.txt").write_text("about it")
    (folder / "other.json").write_text("{}")
    jobs = submitted(client, folder, verify="none")
    assert len(jobs) == 1
    assert ended(client, jobs[0])["state"] in ("done", "skipped")


def test_a_default_that_is_stated_changes_nothing(client: httpx.Client, own: Path) -> None:
    """The page's form states the type, a program may leave it out: one plan, and no second job."""
    plain = planned(client, own, verify="none")
    assert planned(client, own, verify="none", outtype="keep", pure=False, arch=None)["id"] == plain["id"]
    assert planned(client, own, verify="none", outtype="f32")["id"] != plain["id"]


def test_a_file_that_is_put_right_replaces_what_was_planned_of_it(client: httpx.Client, own: Path) -> None:
    """What a plan could not read is set aside; planned again, it is one model, not two."""
    whole = own.read_bytes()
    own.write_bytes(whole[:-5000])
    (bad,) = submitted(client, own, verify="none")
    found = client.get(f"/jobs/{bad}").json()
    assert found["state"] == "quarantined"
    again = client.post(f"/jobs/{bad}/retry")
    assert again.status_code == 409 and "planned again" in again.json()["detail"]
    own.write_bytes(whole)
    (good,) = submitted(client, own, verify="none")
    assert good != bad and ended(client, good)["state"] == "done"
    assert client.get(f"/jobs/{bad}").status_code == 404
    assert client.get("/models", params={"q": own.name}).json()["total"] == 1


def test_jobs_of_an_earlier_version_count_for_who_planned_them(server: Server, own: Path, kept: Service) -> None:
    """Then the owner of a plan was kept, and none of a job."""
    dora = server.client(made_token(server.data, "dora", "submit"))
    (job,) = submitted(dora, own, verify="none")
    size = ended(dora, job)["bytes_out"]
    kept.store.run(kept.store.t.asked.delete())
    assert dora.get("/usage").json()["used"] == size
    assert dora.delete(f"/jobs/{job}").status_code == 403, "nobody is known to have asked for it"
    assert server.client().delete(f"/jobs/{job}").status_code == 204
