"""Claims of a job are counted: before, two claims by one holder could not be distinguished. ggferry_schema says 2."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the counters, with what is known of the claims so far."""
    op.add_column("ggferry_jobs", sa.Column("claims", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("ggferry_jobs", sa.Column("ticket", sa.Text))
    op.add_column("ggferry_attempts", sa.Column("token", sa.BigInteger))
    op.execute("UPDATE ggferry_jobs SET claims = attempts + losses")
    op.execute("UPDATE ggferry_schema SET version = 2")
