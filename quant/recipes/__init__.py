"""Outtypes such as q4_k_m as ordered rules over the names of tensors. Nothing is encoded here."""
