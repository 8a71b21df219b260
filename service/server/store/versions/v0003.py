"""What an upload is for, the digest of what arrived, and who asked for a job, when."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add two columns and a table."""
    op.add_column("ggferry_uploads", sa.Column("purpose", sa.Text))
    op.add_column("ggferry_received", sa.Column("sha256", sa.Text))
    op.create_table(
        "ggferry_asked",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("token", sa.Text),
        sa.Column("name", sa.Text),
        sa.Column("at", sa.Double),
    )
    op.create_index("ix_ggferry_asked_token", "ggferry_asked", ["token"])
