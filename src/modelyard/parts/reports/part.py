"""Pages, plots, Markdown and JUnit of runs, comparisons, jobs and listings."""

from modelyard.part import Part

PART = Part("reports")
