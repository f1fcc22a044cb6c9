"""The rules of checkpoints that training and models share: aliases, retention, look-ups."""
