"""What other servers answer, read so that nothing that was paid for is lost, and the bill is right."""
