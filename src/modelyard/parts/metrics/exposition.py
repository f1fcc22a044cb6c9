"""The text format of Prometheus, version 0.0.4: families of samples, as lines."""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from modelyard.platform.meters import BOUNDS, TimeHistogram

Labels = Mapping[str, object]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@attrs.frozen
class MetricFamily:
    """One metric: its samples, each with its labels. `kind` is "counter", "gauge" or "histogram"."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Labels, float | TimeHistogram]]


def exposition(families: Iterable[MetricFamily]) -> str:
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        if isinstance(value, TimeHistogram):
            yield from _histogram_lines(family.name, labels, value)
        else:
            yield f"{family.name}{_written(labels)} {_number(value)}"


def _histogram_lines(name: str, labels: Labels, value: TimeHistogram) -> Iterator[str]:
    below = 0
    for bound, count in zip((*BOUNDS, None), value.counts, strict=True):
        below += count
        edge = "+Inf" if bound is None else _number(bound)
        yield f"{name}_bucket{_written({**labels, 'le': edge})} {below}"
    yield f"{name}_sum{_written(labels)} {_number(value.total)}"
    yield f"{name}_count{_written(labels)} {below}"


def _written(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(float(value))
