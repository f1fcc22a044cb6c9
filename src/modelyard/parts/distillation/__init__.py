"""What a teacher says of the answers of others, to train them on it."""
