"""Contracts for what a third party implements."""

from modelyard.part import Part

PART = Part("contracts")
