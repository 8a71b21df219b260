"""Rerankers that answer "yes" or "no": what tells them from the causal models whose classes they have."""
