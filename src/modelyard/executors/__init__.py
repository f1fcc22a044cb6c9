"""Where a claimed job runs: in the calling thread, in threads, or in processes."""
