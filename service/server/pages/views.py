"""What the templates show: plain frozen records, so that a page can be made and tested without a server.

Texts in them are untrusted (names of files and tensors, metadata, messages); the templates' environment escapes them.
Sizes are bytes, times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ggferry.service.server.pages import wording

if TYPE_CHECKING:
    from ggferry.service.server.store.models import Folder

PER_PAGE = 50
SORTS = ("name", "state", "container", "architecture", "before", "after", "changed")
ACTIVE = ("queued", "running", "verifying")


@dataclass(frozen=True, slots=True)
class Shell:
    """What every page has around its content.

    Attributes:
        section: The entry of the navigation that is lit.
        version: Version of the server.
        csrf: The token that forms send back; empty where nobody is signed in.
        may_submit: Whether whoever is signed in may add models and run plans.
        may_manage: Whether they may use the server's administration.
        active: How many jobs are at work or waiting.
    """

    section: str = "archive"
    version: str = ""
    csrf: str = ""
    may_submit: bool = True
    may_manage: bool = False
    active: int = 0


@dataclass(frozen=True, slots=True)
class Provider:
    """The OpenID provider by which people sign in; `sign_out`: its address that ends its own session."""

    name: str
    sign_out: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a person reads it.

    Attributes:
        message: What is wrong.
        code: The stable word of it (`formats.errors`).
        path: File it was found in.
        offset: Byte offset in it.
        found: What stood there.
        expected: What should have.
        hint: What to do.
        fault: Where the cause lies (`formats.errors.Fault`).
        status: HTTP status, where it ends a request.
    """

    message: str
    code: str = ""
    path: str | None = None
    offset: int | None = None
    found: str | None = None
    expected: str | None = None
    hint: str | None = None
    fault: str = "person"
    status: int | None = None

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return wording.advice(self.code, self.fault, self.hint)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job or a run is.

    Attributes:
        phase: What is being done (`support.progress.Phase`).
        done: Bytes done.
        total: Bytes in all; 0 where not known.
        rate: Bytes a second.
        eta: Seconds left; None where not known.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    rate: float = 0.0
    eta: float | None = None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the archive's table.

    Attributes:
        id: Id of its job.
        source: Path or URL.
        container: Its label with the version, 'GGJT v1'.
        architecture: As GGUF names it.
        era: When and by what it was written.
        types: Types of its tensors.
        bytes_in: Size of the source.
        bytes_out: Size of the output; of the plan, where it is not written yet; None where nothing is known.
        reason: Why it is not converted, in one line.
        changed: When its state changed.
        progress: How far it is, while it is worked on.
        place: What is shown for its folder, where that is one of the server's own.
        asked_by: Name of the token that asked for it.
        asked: When that was.
        started: When the last attempt began.
        finished: When it ended.
    """

    id: str
    source: str
    state: str
    container: str = ""
    architecture: str = ""
    era: str = ""
    types: str = ""
    bytes_in: int = 0
    bytes_out: int | None = None
    reason: str = ""
    changed: float | None = None
    progress: Progress | None = None
    place: str = ""
    asked_by: str = ""
    asked: float | None = None
    started: float | None = None
    finished: float | None = None

    @property
    def took(self) -> float | None:
        """Return how many seconds the last attempt took; None where it has not ended."""
        if self.started is None or self.finished is None or self.state in ACTIVE:
            return None
        return max(0.0, self.finished - self.started)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.source.rstrip("/").rpartition("/")[2] or self.source

    @property
    def folder(self) -> str:
        """Return what stands before the name."""
        return self.source.rstrip("/").rpartition("/")[0]

    @property
    def when(self) -> str:
        """Return the era without the programs of it."""
        return self.era.partition(" (")[0]

    @property
    def beside(self) -> str:
        """Return the address of the tree's folder that it is in."""
        return ArchiveAddress(tree=True, under=self.folder).url


@dataclass(frozen=True, slots=True)
class ArchiveAddress:
    """What of the archive a page shows, as the address of the page says it.

    Attributes:
        text: Words that the path holds.
        states: Only these; () for all.
        container: Only this, by its label.
        architecture: Only this.
        era: Only this.
        sort: One of `SORTS`.
        descending: Whether the last comes first.
        page: Number of the page, from 1.
        tree: Whether the archive is shown as a tree.
        under: Folder of the tree that is open.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    container: str = ""
    architecture: str = ""
    era: str = ""
    sort: str = "name"
    descending: bool = False
    page: int = 1
    tree: bool = False
    under: str = ""

    @property
    def narrowed(self) -> bool:
        """Return whether it leaves anything out."""
        return bool(self.text or self.states or self.container or self.architecture or self.era)

    @property
    def url(self) -> str:
        """Return the address of the page that shows this."""
        pairs: list[tuple[str, str]] = [("state", state) for state in self.states]
        texts = {"q": self.text, "container": self.container, "architecture": self.architecture, "era": self.era}
        pairs += [(key, value) for key, value in texts.items() if value]
        if self.sort != "name" or self.descending:
            pairs.append(("sort", f"-{self.sort}" if self.descending else self.sort))
        if self.tree:
            pairs.append(("view", "tree"))
        if self.under:
            pairs.append(("under", self.under))
        if self.page > 1:
            pairs.append(("page", str(self.page)))
        return f"/?{urlencode(pairs)}" if pairs else "/"

    def sorted_by(self, key: str) -> ArchiveAddress:
        """Return the query of a click on the head of a column."""
        return replace(self, sort=key, descending=self.sort == key and not self.descending, page=1)

    def only(self, state: str) -> ArchiveAddress:
        """Return the query with one state switched on or off."""
        states = tuple(s for s in self.states if s != state) if state in self.states else (*self.states, state)
        return replace(self, states=states, page=1)

    def but(self, **changes: Any) -> ArchiveAddress:
        """Return the query with changes."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive's page.

    Attributes:
        query: What was asked for.
        rows: The models on this page.
        total: How many models match.
        models: How many there are in all.
        counts: State → number of all models.
        containers: The labels to choose from, likewise `architectures` and `eras`.
        bytes_before: Bytes of the sources whose outputs are proved.
        bytes_after: Bytes of those outputs.
        folders: Folders of the open folder of the tree.
        roots: Places that models are read from.
    """

    query: ArchiveAddress
    rows: tuple[ModelRow, ...] = ()
    total: int = 0
    models: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    containers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    eras: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    folders: tuple[Folder, ...] = ()
    roots: tuple[str, ...] = ()

    @property
    def pages(self) -> int:
        """Return how many pages the matching models take."""
        return max(1, -(-self.total // PER_PAGE))

    @property
    def first(self) -> int:
        """Return the number of the first row shown, from 1."""
        return (self.query.page - 1) * PER_PAGE + 1

    def address(self, page: int) -> str:
        """Return the address of a page of the same models."""
        return replace(self.query, page=page).url

    @property
    def crumbs(self) -> tuple[tuple[str, str], ...]:
        """Return (name, path) of the open folder of the tree and of those above it, the outermost first."""
        found, path = [], ""
        for part in filter(None, self.query.under.split("/")):
            path = f"{path}/{part}" if path or self.query.under.startswith("/") else part
            found.append((part, path))
        return tuple(found)
