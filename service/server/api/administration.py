"""Routes of administrators: tokens, and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from ggferry.service.server import administration
from ggferry.service.server.api.common import PROBLEMS, Admin, ServiceDep, answers
from ggferry.service.server.store.audit import MOST, AuditQuery, AuditRecord
from ggferry.service.server.store.tokens import LONGEST, MadeToken, TokenRecord

router = APIRouter(tags=["administration"], responses=PROBLEMS)


class TokenList(TypedDict):
    """Tokens, and persons who signed in."""

    items: list[TokenRecord]


class AuditPage(TypedDict):
    """Entries of the audit log, and where the page after them begins; null behind the last."""

    items: list[AuditRecord]
    next: int | None


class TokenBody(BaseModel):
    """A token that is wanted."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=LONGEST, description="What it is for")]
    scope: Literal["read", "submit", "admin"] = "read"
    days: Annotated[float, Field(gt=0, le=administration.LONGEST_DAYS)] | None = Field(
        None, description="Days after which it ends; null: when it is revoked"
    )
    quota: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        None, description="Bytes it may store; null: as the server says"
    )
    rate: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="Requests a second; null: as the server says"
    )


@router.get("/tokens", response_model=None, responses=answers(TokenList))
def list_tokens(service: ServiceDep, caller: Admin) -> TokenList:
    """List tokens, and persons who signed in: scope, expiry, last use; never the token itself."""
    return {"items": administration.list_tokens(service)}


@router.post("/tokens", status_code=201, response_model=None, responses=answers(MadeToken, 201))
def make_token(request: Request, service: ServiceDep, caller: Admin, body: TokenBody) -> MadeToken:
    """Make a token; the answer is the only place where it is shown."""
    made = administration.make_token(service, caller, **body.model_dump())
    administration.note_token(request, made)
    return made


@router.delete("/tokens/{token}", status_code=204, response_class=Response)
def revoke_token(
    service: ServiceDep, caller: Admin, token: Annotated[str, Path(pattern="^[0-9a-f]{12,32}$", description="Its id")]
) -> None:
    """End a token, and the sessions of browsers that were begun with it."""
    administration.revoke_token(service, token)


@router.get("/audit", response_model=None, responses=answers(AuditPage))
def audit(
    service: ServiceDep,
    caller: Admin,
    q: Annotated[str, Query(max_length=400, description="Stands in the actor, action, subject or detail")] = "",
    token: Annotated[str | None, Query(max_length=64, description="Id of the token that acted")] = None,
    since: Annotated[float | None, Query(description="Seconds since 1970", allow_inf_nan=False)] = None,
    until: Annotated[float | None, Query(description="Seconds since 1970", allow_inf_nan=False)] = None,
    cursor: Annotated[int | None, Query(ge=0, lt=1 << 62, description="As `next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> AuditPage:
    """List what was changed: who, what, when, from where; the newest first, a page at a time."""
    query = AuditQuery(q, token, since, until, cursor, limit)
    items, following = administration.audit_entries(service, query)
    return {"items": items, "next": following}
