"""Whether rows that share a field are more alike than others: an interval without `cluster_by` is too narrow then."""

from collections.abc import Iterator, Sequence
from itertools import islice

from modelyard.domain.evaluation.metrics import RunRow, row_values, rows
from modelyard.domain.evaluation.statistics import clustered_error, describe
from modelyard.report.evaluations.run import RunReport

LOOKED_AT = 1000
"""How many rows are read."""

LEAST_CLUSTERS = 5
WIDER = 1.25
"""From this factor on it is worth saying."""


def cluster_notes(report: RunReport) -> Iterator[str]:
    """Name the field that rows share and that widens the interval of the first metric most, if there is one.

    Labels, such as an answer of four letters, have too few values to be clusters; and what is expected is what is
    measured, not what rows share: the field `expected`, and one that most right outputs repeat.
    """
    found, options = report.aggregate.metrics, report.aggregate.options
    if options.cluster_by is not None or not found:
        return
    names = {found[0].metric: found[0].name}
    read = [
        (row, float(value))
        for row in islice(rows(report.rows.full()), LOOKED_AT)
        for value in row_values(row, names, options.reduce).values()
    ]
    shared = [field for field in (read[0][0].inputs if read else ()) if all(field in row.inputs for row, _ in read)]
    values = [value for _, value in read]
    right = [row for row, value in read if value == max(values)]
    shared = [field for field in shared if field != "expected" and not _is_repeated(field, right)]
    factors = {field: _factor(values, [str(row.inputs[field]) for row, _ in read]) for field in shared}
    widest = max(factors, key=lambda field: factors[field], default=None)
    if widest is not None and factors[widest] >= WIDER:
        yield f'rows share {widest}: cluster_by="{widest}" widens the interval, by {factors[widest]:.2g} times'


def _is_repeated(field: str, right: Sequence[RunRow]) -> bool:
    """Return whether most of these outputs hold the value of a field, as of an answer key."""
    repeated = sum(str(row.inputs[field]).strip().lower() in str(row.output).lower() for row in right)
    return 2 * repeated > len(right)


def _factor(values: Sequence[float], clusters: Sequence[str]) -> float:
    """Return by what clusters multiply the standard error; 0 if there are too few, or none is shared."""
    plain = describe(values).error
    if not plain or not LEAST_CLUSTERS <= len(set(clusters)) < len(clusters):
        return 0.0
    return (clustered_error(values, clusters) or 0.0) / plain
