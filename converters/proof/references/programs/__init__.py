"""Programs that run in the witnesses' processes: each file is one of its own, and imports nothing of ggferry."""
