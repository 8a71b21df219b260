"""The commands on model files in hand, one module a group of verbs."""
