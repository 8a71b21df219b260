"""The options of `serve` made absolute, and examined before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.formats.errors import UsageError

if TYPE_CHECKING:
    from ggferry.service.server.settings import Settings


def absolute(place: str) -> str:
    """Return a folder or URL as it is known from anywhere: Ray begins in a folder of its own."""
    from ggferry.service.storage.stores import is_remote, local_path

    return place if is_remote(place) else local_path(place)


def absolute_ledger(place: str) -> str:
    """Return a ledger's place likewise; `env:NAME` and URLs are as they are."""
    from ggferry.service.records.ledger_url import full_url

    return os.path.abspath(place) if ":" not in place and full_url(place).startswith("sqlite:") else place


def addresses(given: Sequence[str]) -> tuple[str, ...]:
    """Return the values of `--trusted-proxy`. Raises UsageError for what is neither an address nor a network."""
    import ipaddress

    for each in given:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            raise UsageError(
                "--trusted-proxy", found=each, expected="an address or a network, as 10.0.0.1 or 10.0.0.0/24"
            ) from None
    return tuple(given)


def path_of_root(given: str) -> str:
    """Return the value of `--root-path` without a slash at its end. Raises UsageError for what is no path."""
    path = given.rstrip("/")
    if path and not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", path):
        raise UsageError("--root-path", found=given, expected="a path, as /ggferry")
    return path


def _check_roots(settings: Settings) -> None:
    """Raise UsageError for a root that is not there, or that holds what the server keeps."""
    from ggferry.service.server.work.sources import is_within
    from ggferry.service.storage.stores import is_remote

    for each in settings.places:
        if not is_remote(each) and not os.path.isdir(each):
            raise UsageError("--root", found=each, expected="a folder, or the URL of a store")
        own = (os.path.realpath(settings.data), settings.uploads, settings.quarantine)
        if not is_remote(each) and (
            any(is_within(place, each) for place in own) or any(is_within(each, place) for place in own[1:])
        ):
            raise UsageError(
                "--root: one user's uploads would be another's source",
                found=each,
                expected=f"a folder apart from the server's own, {settings.data}",
            )


def _check_destination(settings: Settings) -> None:
    """Raise UsageError for the URL of a place that outputs, or uploads, cannot be kept in."""
    from ggferry.service.server.work.sources import is_within
    from ggferry.service.storage.stores import is_remote

    url, uploads = settings.outputs, settings.uploads_in
    if is_remote(url) and not _is_prefix(url):
        raise UsageError("--dest", found=url, expected="a folder, or s3://BUCKET/PREFIX")
    if uploads is None:
        return
    if not _is_prefix(uploads):
        raise UsageError("--uploads", found=uploads, expected="s3://BUCKET/PREFIX")
    for each in (url, *settings.places):
        if is_remote(each) and (is_within(uploads, each) or is_within(each, uploads)):
            words = "--uploads: one user's uploads would be another's source, or taken for outputs"
            raise UsageError(words, found=each, expected=f"a prefix apart from {uploads}")


def _is_prefix(url: str) -> bool:
    return re.fullmatch(r"s3a?://[^/]+/[^?#]+", url) is not None


def _check_engine(settings: Settings) -> None:
    """Raise UsageError for an engine that there is not, or whose package is not installed."""
    from ggferry.service.apply.migration import check_engine
    from ggferry.service.apply.ray_cluster import import_ray

    check_engine(settings.engine)
    if settings.engine == "ray":
        import_ray()


def check(settings: Settings) -> None:
    """Raise UsageError for a root, a destination or an engine that a server cannot have."""
    _check_roots(settings)
    _check_destination(settings)
    _check_engine(settings)
