"""The server's tables of version 0.1, which did not state their version."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: whatever has no version yet has these tables."""
