"""The parts of a forward pass: rotation, attention, feed-forward, mixing. No part knows a whole model."""
