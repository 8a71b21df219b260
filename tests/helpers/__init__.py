"""What tests are made of: builders of models, servers to talk to, other programs, witnesses. No test stands here."""
