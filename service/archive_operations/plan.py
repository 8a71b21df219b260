"""Plan the migration of an archive: the request, the plan made and written, and the result.

The options of the conversions themselves are those that `converters.conversion.options` has for `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any

from ggferry.converters.conversion.options import Kind, Option, options_of, types_of
from ggferry.service.archive_operations._workers import Memory, RetryTimeout, cores, limits_of
from ggferry.service.operation import argument, declare
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.service.plan.make_plan import Progress
    from ggferry.service.records.fields import PlanSummary


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """Scan an archive and write a migration plan. Reads headers, no tensor data."""

    roots: Annotated[
        tuple[str, ...],
        argument("Folders, files or URLs (s3://, https://, hf://).", Kind.TEXTS, metavar="ROOT…"),
    ]
    _: KW_ONLY
    out: Annotated[str, declare(Kind.TEXT, "The plan to write.", "--outfile", "-o", metavar="FILE")]
    dest: Annotated[
        str | None, declare(Kind.TEXT, "Folder or URL of the outputs (default: beside the sources).", "--dest",
                metavar="DIR|URL")
    ] = None
    digest: Annotated[
        bool | None,
        declare(Kind.FLAG,
                "Read files of equal size whole to prove duplicates (default: on disks, not in stores).",
                "--digest", "--no-digest"),
    ] = None
    jobs: Annotated[
        int | None, declare(Kind.NUMBER,
                "Processes that read headers (default: cores).",
                "--jobs", "-j", least=1, most=256)
    ] = None
    follow_redirects: Annotated[bool, declare(Kind.FLAG, "Follow redirects to other hosts.", "--follow-redirects")] = (
        False
    )
    retry_timeout: RetryTimeout = 30.0
    memory: Memory = "4GiB"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan that was written.

    Attributes:
        path: Its file.
        summary: The plan in numbers.
        secrets: The file that holds what is secret in its addresses; None where nothing is.
    """

    path: str
    summary: PlanSummary
    secrets: str | None


def run(
    request: PlanCommand, options: Mapping[str, Any], counting: Callable[[], AbstractContextManager[Progress]]
) -> PlanResult:
    """Make the plan of an archive, and write it.

    Args:
        request: What is planned, and how.
        options: The options of the conversions by name; what was not given is None, or absent.
        counting: The context in which the models that were inspected are counted for a person.

    Returns:
        The plan in numbers.

    Raises:
        UsageError: An option has no such value.
        RefusedError: The plan's file exists already.
        NotFoundError: A root does not exist; a bad file is a line of the plan.
    """
    from ggferry.converters.conversion.plan import check_request
    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.proof.references.examine import chosen
    from ggferry.formats.files.partial_files import check_target
    from ggferry.service.plan.make_plan import PlanRequest
    from ggferry.service.plan.make_plan import plan as make
    from ggferry.service.records.plan_file import write_plan
    from ggferry.service.records.report import summary
    from ggferry.service.storage.urls import Access, secrets_of, write_secrets

    types = types_of(options.get("outtype") or "keep")
    conversion, *_ = [request_of("", {**options, "outtype": each}) for each in types]
    check_request(conversion)
    chosen(conversion.witness, conversion.level)
    check_target(request.out, overwrite=conversion.force)
    given = [each for each in options_of("plan") if _is_declared(each, options)]
    declared = {each.name: _plain(each, options[each.name]) for each in given}
    planned = PlanRequest(
        tuple(request.roots), request.dest, ",".join(types), conversion.level, declared, request.digest,
        request.jobs or cores(), limits_of(request.memory, 1),
        Access(redirects=request.follow_redirects, retry_timeout=request.retry_timeout),
    )
    with counting() as count_models:
        head, entries = make(planned, count_models)
    write_plan(request.out, head, entries, overwrite=conversion.force)
    names = {each.path for entry in entries for each in (*entry.files, *entry.beside)}
    kept = write_secrets(request.out, secrets_of(names))
    return PlanResult(request.out, summary(entries, head), kept)


def _is_declared(each: Option, options: Mapping[str, Any]) -> bool:
    """Return whether the lines of a plan are to state an option; the head states those that it has."""
    return each.in_plan and each.name not in ("outtype", "verify") and bool(options.get(each.name))


def _plain(each: Option, value: Any) -> Any:
    return value.lower() if isinstance(each.choices, tuple) and isinstance(value, str) else value
