"""The service: what one server has open, from its start to its end."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace

from ggferry.formats.errors import GgferryError
from ggferry.formats.packed.scratch import sweep
from ggferry.service.apply import job
from ggferry.service.apply.job import Outcome
from ggferry.service.apply.migration import ledger_mark
from ggferry.service.records.ledger import Job
from ggferry.service.server.guard.auditing import Auditor
from ggferry.service.server.guard.callers import Doorkeeper
from ggferry.service.server.guard.lookups import Lookups
from ggferry.service.server.guard.observe import Log, Observer
from ggferry.service.server.guard.openid import OpenId
from ggferry.service.server.guard.tracing import Tracer
from ggferry.service.server.hub_search import HubSearch
from ggferry.service.server.quality import Qualities
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import models, tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.probe import Probe
from ggferry.service.server.store.secret_box import open_box
from ggferry.service.server.work import notices
from ggferry.service.server.work.events import Hub
from ggferry.service.server.work.housekeeping import Housekeeper
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.notices import Notifier
from ggferry.service.server.work.outputs.output_files import Outputs
from ggferry.service.server.work.outputs.readers import Blocks
from ggferry.service.server.work.planning import Planner, secrets_file
from ggferry.service.server.work.progress import ProgressBoard
from ggferry.service.server.work.runner import Runner
from ggferry.service.server.work.uploads import Uploads
from ggferry.service.storage.urls import configure_access, read_secrets
from ggferry.service.workers.messages import Event
from ggferry.support.platform import here

LINK_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a request may need.

    Attributes:
        settings: What was asked on the command line.
        store: The ledger with the server's tables.
        doorkeeper: Finds tokens.
        observer: Logs and figures.
        auditor: Enters in the audit log who changed what.
        openid: The OpenID provider by which people sign in; None: there is none.
        inspectors: Worker processes that answer questions about models.
        lookups: Turns of callers at these.
        probe: Whether the ledger answers and the disk has room.
        planner: Plans.
        progress: What running jobs have done.
        hub: Events, for those who listen.
        hub_search: Models of the Hugging Face Hub, where a root is there.
        qualities: How outputs predict texts.
        runner: The engine.
        uploads: Files that are received.
        outputs: Files that were made.
        blocks: What downloads hold of them in memory.
        notifier: Webhooks.
        housekeeper: Removes what is past its time.
        draining: Set when the server is about to end.
    """

    settings: Settings
    store: Store
    doorkeeper: Doorkeeper
    observer: Observer
    auditor: Auditor
    openid: OpenId | None
    inspectors: InspectorPool
    lookups: Lookups
    probe: Probe
    planner: Planner
    progress: ProgressBoard
    hub: Hub
    hub_search: HubSearch
    qualities: Qualities
    runner: Runner
    uploads: Uploads
    outputs: Outputs
    blocks: Blocks
    notifier: Notifier
    housekeeper: Housekeeper
    draining: threading.Event

    def link(self) -> str:
        """Return a token for the link that is printed at the start; it is good for a day."""
        return tokens.add(self.store, "the link printed at the start", tokens.ADMIN, seconds=LINK_SECONDS)

    def start(self) -> None:
        """Begin to work."""
        if self.settings.scratch is not None:
            sweep(self.settings.scratch)
        tokens.prune(self.store)
        models.index_unknown(self.store)
        self.uploads.inspection.start()
        self.hub.start()
        self.runner.start()
        self.notifier.start()
        self.housekeeper.start()

    def drain(self) -> None:
        """End: no new work, time for what runs, then what is left is queued again."""
        self.draining.set()
        self.runner.drain(self.settings.drain)
        self.planner.close()
        self.inspectors.close()
        self.lookups.close()
        self.hub_search.close()
        self.qualities.close()
        self.doorkeeper.close()
        self.probe.close()
        self.notifier.close()
        self.housekeeper.close()
        self.uploads.inspection.close()
        self.blocks.close()
        self.hub.close()
        self.store.close()
        self.observer.close()


def open_service(settings: Settings, log: Log | None = None, tracer: Tracer | None = None) -> Service:
    """Open the ledger and make the folders of a server. Raises GgferryError."""
    tracer = Tracer() if tracer is None and settings.traces else tracer
    scratch = [settings.scratch] if settings.scratch is not None else []
    for folder in (settings.data, settings.uploads, settings.quarantine, settings.output_folder, *scratch):
        os.makedirs(folder, 0o700, exist_ok=True)
    found = os.stat(settings.data)
    if found.st_mode & 0o077 and here.is_own(found):  # it was there before: it becomes its owner's alone
        os.chmod(settings.data, 0o700)
    store = Store(settings.ledger_place)
    observer = Observer(log or Log(), lambda: store.counts().items(), tracer)
    progress = ProgressBoard(store)
    hub = Hub(store, progress.running)
    mark = ledger_mark(settings.ledger_place)
    outputs = Outputs(store, settings, mark)
    box = open_box(settings)
    notices.seal_all(store, box)
    inspectors = InspectorPool(settings.inspectors, settings.limits)
    planner = Planner(store, settings, inspectors)
    configure_access(replace(planner.access(), secrets=read_secrets(secrets_file(settings))))

    def see(event: Event) -> None:
        progress.see(event)
        observer.see(event)
        hub.wake()

    def done(finished: Job, outcome: Outcome) -> None:
        observer.converted.inc(int(finished.entry.get("bytes_in", 0)))
        try:
            outputs.every(finished.id)
        except GgferryError as error:  # whoever asks for the file is told the same
            observer.log.write("output", "warning", job=finished.id, message=str(error))

    def open_ledger() -> Store:
        return Store(settings.ledger_place, retry_timeout=60.0)

    working = job.Settings(settings.limits, settings.scratch, settings.timeout, access=planner.access(), mark=mark)
    runner = Runner(
        open_ledger,
        store.submitted(),
        settings.jobs,
        working,
        see,
        done,
        observer.log.write,
        settings.engine,
        settings.ray_address,
    )
    uploads = Uploads(store, settings, inspectors, observer.log.write)
    return Service(
        settings,
        store,
        Doorkeeper(store),
        observer,
        Auditor(store, observer),
        None if settings.openid is None else OpenId(settings.openid),
        inspectors,
        Lookups(),
        Probe(store.fault, settings.data),
        planner,
        progress,
        hub,
        HubSearch(settings.places),
        Qualities(store, settings),
        runner,
        uploads,
        outputs,
        Blocks(),
        Notifier(store, box, lambda result: observer.notices.labels(result).inc(), observer.log.write),
        Housekeeper(store, settings, uploads, outputs, observer.log.write),
        threading.Event(),
    )
