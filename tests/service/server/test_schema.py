"""The API against its own schema: schemathesis makes requests of every operation, sound and broken ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from helpers.server import Server, ended, submitted

CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance)
OPERATIONS = {
    "GET /api/v1/events": None,
    "GET /api/v1/jobs/{job}/events": None,  # these answers do not end
}


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    headers = {"Authorization": f"Bearer {server.token}"}
    return schemathesis.openapi.from_url(f"{server.url}/api/openapi.json", headers=headers)


@pytest.fixture(scope="module")
def job(server: Server) -> str:
    """A job that is done: its id is among those that are tried."""
    with server.client() as client:
        (job,) = submitted(client, server.data.parent / "root" / "old.bin", verify="fast")
        assert ended(client, job)["state"] == "done"
        return job


def operations(schema: Any) -> Iterator[Any]:
    for each in schema.get_all_operations():
        operation = each.ok()
        if operation.label not in OPERATIONS:
            yield operation


def checked(server: Server, operation: Any, mode: GenerationMode, examples: int, job: str) -> list[int]:
    """The statuses of requests of an operation, each of which must be answered as the schema says."""
    statuses = []
    headers = {"Authorization": f"Bearer {server.token}"}

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if case.path_parameters and "job" in case.path_parameters and len(statuses) % 2:
            case.path_parameters["job"] = job
        response = case.call(base_url=server.url, headers=headers, timeout=60)
        statuses.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    with suppress(Unsatisfiable):  # an operation without parameters cannot be asked wrongly
        run()
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_operations_answer_as_the_schema_says(server: Server, schema: Any, job: str, mode: GenerationMode) -> None:
    found = {each.label: checked(server, each, mode, 25, job) for each in operations(schema)}
    assert len(found) > 25
    assert not {label: codes for label, codes in found.items() if any(code >= 500 for code in codes)}


def test_the_schema_is_described(client: httpx.Client, server: Server) -> None:
    """Whoever reads it finds a sentence for each operation, and that each may answer with a problem."""
    found = httpx.get(f"{server.url}/api/openapi.json", headers=dict(client.headers)).json()
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            assert each["description"].endswith("."), (path, method)
            assert "default" in each["responses"], (path, method)


def test_the_schema_is_valid_and_types_every_answer(client: httpx.Client, server: Server) -> None:
    """A generated client gets methods with names of their own, and records for what they return."""
    found = httpx.get(f"{server.url}/api/openapi.json", headers=dict(client.headers)).json()
    validate(found)
    operations = [each for methods in found["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names) and all(re.fullmatch("[a-z]+_[a-z_]+", name) for name in names), names
    for each in operations:
        for status, answer in each["responses"].items():
            for kind, content in answer.get("content", {}).items():
                schema = content.get("schema", {})
                if kind == "application/json" and status.startswith("2"):
                    either = schema.get("anyOf") or [schema]  # of a receipt: a file's or a folder's
                    assert all(
                        "$ref" in one or one.get("items") or one.get("additionalProperties") for one in either
                    ), (each, status)
