"""Results in the XML of JUnit, which CI services read: one case for each thing that may fail."""

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

import attrs

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@attrs.frozen
class Case:
    name: str
    failure: str = ""
    error: str = ""
    details: str = ""


def suite(name: str, cases: Iterable[Case]) -> str:
    found = list(cases)
    counts = f'tests="{len(found)}" failures="{_count(found, "failure")}" errors="{_count(found, "error")}"'
    lines = [f"<testsuite name={_attribute(name)} {counts}>", *(_case(name, one) for one in found), "</testsuite>"]
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites {counts}>", *lines, "</testsuites>", ""])


def _count(cases: Iterable[Case], kind: str) -> int:
    return sum(bool(getattr(one, kind)) for one in cases)


def _case(suite: str, case: Case) -> str:
    opened = f"<testcase classname={_attribute(suite)} name={_attribute(case.name)}"
    kind = "error" if case.error else "failure"
    message = case.error or case.failure
    if not message:
        return f"{opened}/>"
    return f"{opened}><{kind} message={_attribute(message)}>{escape(_valid(case.details))}</{kind}></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_valid(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _valid(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
