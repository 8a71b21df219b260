"""A log of what was changed by whom, and who made a token."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add a table and a column."""
    op.add_column("ggferry_tokens", sa.Column("made_by", sa.Text))
    op.create_table(
        "ggferry_audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double),
        sa.Column("actor", sa.Text),
        sa.Column("token", sa.Text),
        sa.Column("address", sa.Text),
        sa.Column("action", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("status", sa.Integer),
        sa.Column("request", sa.Text, unique=True),
        sa.Column("detail", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("ggferry_audit_at", "ggferry_audit", ["at"])
