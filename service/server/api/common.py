"""What the routes share: the service and the caller of a request, scopes, and the forms of answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import MEDIA_TYPE, HttpError
from ggferry.service.server.state import Service
from ggferry.service.server.store.tokens import ADMIN, READ, SUBMIT

VERSION = "/api/v1"


class Problem(BaseModel):
    """An RFC 9457 problem: what is wrong, where, and the way out."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(description="urn:ggferry:problem:CODE")
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable word for the kind of error, as `--json` has it")
    fault: str | None = Field(None, description="Where the cause lies: file, person or passing")
    path: str | None = None
    offset: int | None = None
    found: Any = None
    expected: Any = None
    hint: str | None = None
    exit_code: int | None = Field(None, description="What the command line would have ended with")


def answers(kind: Any, status: int = 200, words: str = "The answer") -> dict[int | str, dict[str, Any]]:
    """Return what the API's description says of an answer, of a type that is not enforced.

    pydantic would leave out what the type does not name, and refuse what an older ledger lacks.
    """
    return {status: {"model": kind, "description": words}}


BINARY = {"type": "string", "format": "binary"}
"""A body of bytes, in the API's description."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What is wrong",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
"""How every route answers when it does not answer."""


async def service_of(request: Request) -> Service:
    """Return the service that a request is for."""  # async, like `check`: FastAPI runs a plain `def` in a thread
    found: Service = request.app.state.service
    return found


def caller_with(scope: str) -> Any:
    """Return a dependency that gives the caller, who must have `scope`."""

    async def check(request: Request) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(scope):
            detail = f"this needs the scope {scope}"
            raise HttpError(403, "scope", detail, found=caller.scope, expected=scope)
        return caller

    return Depends(check)


ServiceDep = Annotated[Service, Depends(service_of)]
Reader = Annotated[Caller, caller_with(READ)]
Submitter = Annotated[Caller, caller_with(SUBMIT)]
Admin = Annotated[Caller, caller_with(ADMIN)]
Text = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="Id of a job")]
PlanId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="Id of a plan")]
UploadId = Annotated[str, Path(pattern="^[0-9a-f]{24}$", description="Id of an upload")]
