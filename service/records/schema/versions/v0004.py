"""Queued jobs have a priority, which people set, and are claimed in its order."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, and exchange the index of the queue."""
    op.add_column("ggferry_jobs", sa.Column("priority", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("DROP INDEX IF EXISTS ggferry_jobs_next")
    order = ("plan", "state", "priority DESC", "(attempts + losses)", "bytes_in DESC", "id")
    op.create_index("ggferry_jobs_next", "ggferry_jobs", [sa.text(each) for each in order])
