"""Secrets of webhooks are encrypted: an older ggferry would sign by what it cannot read."""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Do nothing: the server that has the key encrypts what is there (`notices.seal_all`)."""
