"""Loops: jobs that sample, judge, train and validate, round after round."""
