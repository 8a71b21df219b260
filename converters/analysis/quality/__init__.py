"""How models predict a text, and how that differs from what their base predicts."""
