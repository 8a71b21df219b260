"""The parts a forward pass is made of: rotation, attention, feed-forward, mixing. No part knows a whole model."""
