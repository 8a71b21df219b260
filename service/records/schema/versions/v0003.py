"""Jobs are claimed in the order of an index: before, each claim sorted all that were queued."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Exchange the index of the queue, and add one of the jobs that wait for another of the same content."""
    op.execute("DROP INDEX IF EXISTS ggferry_jobs_queue")
    order = [sa.text(each) for each in ("plan", "state", "(attempts + losses)", "bytes_in DESC", "id")]
    op.create_index("ggferry_jobs_next", "ggferry_jobs", order, if_not_exists=True)
    op.create_index("ggferry_jobs_waiting", "ggferry_jobs", ["same_as"], if_not_exists=True)
