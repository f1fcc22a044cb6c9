"""What trains: each trainer turns a parent checkpoint and data into a new checkpoint, one optimizer step at a time."""
