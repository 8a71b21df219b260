"""What runs in a process of its own, without any module of ggferry."""
