"""Upload a model, have it converted and fetch the result, by a client that was generated from the API's description.

pip install openapi-python-client
curl -H "Authorization: Bearer $GGFERRY_TOKEN" $GGFERRY_SERVER/api/openapi.json -o openapi.json
openapi-python-client generate --path openapi.json --meta none --output-path ggferry_api
python generated_client.py old.bin new/
"""

import base64
import hashlib
import io
import os
import sys
import time
from pathlib import Path
from typing import TypeVar

from ggferry_api import AuthenticatedClient
from ggferry_api.api.files import files_download
from ggferry_api.api.jobs import jobs_files, jobs_make_plan, jobs_show, jobs_submit
from ggferry_api.api.uploads import uploads_begin, uploads_receive, uploads_show
from ggferry_api.models import Announced, Announcement, Planning, PlanningOptions, Problem, Submission
from ggferry_api.types import File

T = TypeVar("T")
ENDED = ("done", "failed", "quarantined", "skipped", "cancelled", "expired")


class Refused(Exception):
    """The server answered with a problem."""


def answer(found: T | Problem | None) -> T:
    """Return what was answered. Raises Refused."""
    if found is None or isinstance(found, Problem):
        raise Refused(found.detail if found is not None else "no answer")
    return found


def upload(client: AuthenticatedClient, path: Path) -> str:
    """Send a file, and return it as a source once it was inspected."""
    content = path.read_bytes()
    announced = Announced(name=path.name, bytes_=len(content), sha256=hashlib.sha256(content).hexdigest())
    begun = answer(uploads_begin.sync(client=client, body=Announcement(files=[announced])))
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"
    answer(uploads_receive.sync(begun.id, 0, client=client, body=File(io.BytesIO(content)), content_digest=digest))
    while (shown := answer(uploads_show.sync(begun.id, client=client))).state in ("receiving", "inspecting"):
        time.sleep(0.2)
    if shown.state != "accepted":
        raise Refused(f"{path}: {shown.state}")
    return shown.source


def convert(client: AuthenticatedClient, source: str) -> str:
    """Have a source converted, and return the job once it is done."""
    options = PlanningOptions.from_dict({"outtype": "q8_0", "verify": "fast"})
    plan = answer(jobs_make_plan.sync(client=client, body=Planning(source=source, options=options)))
    (job,) = answer(jobs_submit.sync(client=client, body=Submission(plan=plan.id))).jobs
    while (shown := answer(jobs_show.sync(job, client=client))).state not in ENDED:
        time.sleep(0.2)
    if shown.state != "done":
        raise Refused(f"{source}: {shown.state}")
    return job


def fetch(client: AuthenticatedClient, job: str, folder: Path) -> None:
    """Write the files of a job to a folder, each compared with its SHA-256."""
    for file in answer(jobs_files.sync(job, client=client)):
        content = answer(files_download.sync(job, file.name, client=client)).payload.read()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise Refused(f"{file.name}: another SHA-256")
        (folder / file.name).write_bytes(content)
        print(file.name, file.bytes_, file.sha256)


if __name__ == "__main__":
    with AuthenticatedClient(os.environ["GGFERRY_SERVER"], os.environ["GGFERRY_TOKEN"]) as client:
        fetch(client, convert(client, upload(client, Path(sys.argv[1]))), Path(sys.argv[2]))
