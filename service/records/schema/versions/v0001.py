"""The ledger as it was before claims were counted; ggferry_schema says 1. Nothing is older."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: whatever has no version yet has these tables at least."""
