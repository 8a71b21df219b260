"""Pieces of uploads in a store that several servers share."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "ggferry_pieces",
        sa.Column("upload", sa.Text, primary_key=True),
        sa.Column("file", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
    )
