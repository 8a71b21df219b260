"""What runs in the witnesses' processes: each file a program of its own, which imports nothing of ggferry."""
