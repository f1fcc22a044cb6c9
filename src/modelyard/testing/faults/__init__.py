"""Failures on a schedule: of backends, stores, files, connections and workers."""
