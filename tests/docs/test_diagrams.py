"""The state diagrams in the docs are those of the tables in the domain."""

import re
from pathlib import Path

from modelyard.domain.job import TRANSITIONS, JobStatus

ROOT = Path(__file__).parents[2]


def edges(page: str) -> set[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", text, re.DOTALL)
    assert diagram is not None
    return set(re.findall(r"(\w+) --> (\w+)", diagram[1]))


def test_the_diagram_of_job_states_shows_exactly_the_allowed_transitions() -> None:
    assert edges("explanation/jobs.md") == {(str(a), str(b)) for a, following in TRANSITIONS.items() for b in following}


def test_every_end_of_a_job_leads_out_of_the_diagram() -> None:
    text = (ROOT / "docs" / "explanation/jobs.md").read_text(encoding="utf-8")
    ends = set(re.findall(r"(\w+) --> \[\*\]", text))
    assert ends == {str(status) for status in JobStatus if not TRANSITIONS[status]}
