"""Answers that are written as rules."""

from modelyard.part import Part

PART = Part("scripted")
