"""How the outputs of jobs predict texts that people gave."""

from alembic import op

from ggferry.support.heavy import sa

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "ggferry_qualities",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text),
        sa.Column("token", sa.Text),
        sa.Column("name", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text),
        sa.Column("characters", sa.BigInteger),
        sa.Column("context", sa.Integer),
        sa.Column("chunks", sa.Integer),
        sa.Column("total", sa.Integer),
        sa.Column("result", sa.JSON),
        sa.Column("error", sa.JSON),
        sa.Column("created", sa.Double),
        sa.Column("owner", sa.Text),
    )
    op.create_index("ix_ggferry_qualities_job", "ggferry_qualities", ["job"])
