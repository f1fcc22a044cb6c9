"""Doubles for tests of applications: cassettes, faults, interception, clients without a socket."""
