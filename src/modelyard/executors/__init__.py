"""Where a claimed job runs: in the calling thread, or in threads."""
