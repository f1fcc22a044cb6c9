"""Scheduled failures of backends, stores, files, connections and workers."""
