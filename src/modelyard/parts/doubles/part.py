"""Doubles for tests of applications."""

from modelyard.part import Part

PART = Part("doubles")
