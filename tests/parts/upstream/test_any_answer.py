"""Whatever a server answers, in any status, envelope and compression: an answer or a documented error, and no hang."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned_answers import answering
from example_counts import examples
from modelyard import Pricing
from modelyard.backends import Timeouts, discover
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, Overloaded
from modelyard.parts.upstream.connections import MOST_WHOLE
from modelyard.parts.upstream.exchange import MAX_REFUSAL
from upstream_asking import SECRET, TIMEOUTS, Hurried, ask, ask_on_loop, backend_at, http, request_of, served, text_of

WHOLE = {"choices": [{"message": {"content": "hi there"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
CHUNK = {"choices": [{"delta": {"content": "hi there"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
SAYS = f"it is about {SECRET}"
BODIES: list[Any] = [
    WHOLE,
    CHUNK,
    {"error": SAYS},
    {"error": {"message": SAYS, "code": "insufficient_quota", "param": SECRET}},
    {"code": 1113, "msg": SAYS},
    {"success": False, "message": SAYS},
    {"detail": [{"loc": ["body", SECRET], "msg": SAYS}]},
    {"errors": [{"message": SAYS}]},
    {"fault": {"faultstring": SAYS}},
    {"error": {"message": f"maximum context length is 9 tokens, {SAYS}"}},
    [SAYS],
    SAYS,
    None,
    [],
    {},
]
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda body: b"\x8b\x02\x80" + body,
    "zstd": lambda body: b"\x28\xb5\x2f\xfd" + body,
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
}
CUT = Timeouts(retries=0)


@pytest.mark.slow
@given(
    status=st.integers(100, 599),
    body=st.sampled_from(BODIES),
    written=st.sampled_from(["document", "events", "page", "nothing"]),
    encoding=st.sampled_from(sorted(PACKED)),
    label=st.sampled_from(["application/json", "text/event-stream", "text/html", ""]),
    lost=st.sampled_from([0, 0, 0, 1, 20]),
    streamed=st.booleans(),
    way=st.sampled_from([ask, ask_on_loop]),
)
@examples(150)
def test_it_ends_in_an_answer_or_a_documented_error(
    status: int, body: Any, written: str, encoding: str, label: str, lost: int, streamed: bool, way: Any
) -> None:
    text = json.dumps(body).encode()
    forms = {"events": b"data: " + text + b"\n\n", "page": b"<html><title>" + text + b"</title>", "nothing": b""}
    packed = PACKED[encoding](forms.get(written, text))
    answer = http(packed, label, f"{status} x", f"content-encoding: {encoding}\r\n" if encoding else "")
    with answering(answer[: len(answer) - lost]) as url, backend_at(url, timeouts=CUT) as backend:
        try:
            deltas = way(backend, streamed=streamed)
        except (BackendError, InvalidInput, Overloaded) as failed:
            assert SECRET not in f"{failed} {failed.__cause__}"
        else:
            assert 200 <= status < 300
            assert text_of(deltas) == "hi there"


# ---- a refusal keeps its meaning, whatever its body is


UNREADABLE = {
    "longer than it may be": (b"<html>" + b"x" * 2 * MAX_REFUSAL, ""),
    "a compression that is not read": (b"\x8b\x02\x80", "content-encoding: br\r\n"),
    "a wrong compression": (b"\x1f\x8b nonsense", "content-encoding: gzip\r\n"),
    "a bomb": (gzip.compress(b"\0" * 2**24), "content-encoding: gzip\r\n"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_fault_that_may_pass_is_tried_again_whatever_its_body_is(canned: Any, either: Any, name: str) -> None:
    body, more = UNREADABLE[name]
    fault = http(body, "text/html", "503 x", more)
    fine = http(json.dumps(WHOLE).encode())
    with backend_at(canned(fault, fine), clock=Hurried(), timeouts=TIMEOUTS) as backend:
        assert text_of(either(backend)) == "hi there"


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize(("status", "error"), [(400, InvalidInput), (401, BackendError), (503, Overloaded)])
def test_a_refusal_is_what_its_status_says(canned: Any, name: str, status: int, error: Any) -> None:
    body, more = UNREADABLE[name]
    with backend_at(canned(http(body, "text/html", f"{status} x", more)), timeouts=CUT) as backend:
        with pytest.raises(error):
            ask(backend)


def test_a_refusal_that_breaks_off_is_one(canned: Any, either: Any) -> None:
    report = http(b'{"error": {"message": "maximum context length is 9 tokens"}}', status="400 x")
    with backend_at(canned(report.replace(b"length: ", b"length: 9", 1)), timeouts=CUT) as backend:
        with pytest.raises(ContextLengthExceeded):
            either(backend)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "at", ["http://other:81/v2", f"https://me:{SECRET}@other:81/v2?key={SECRET}#x", "//other:81/v2"]
)
def test_a_redirect_elsewhere_names_the_place_and_no_secret(canned: Any, either: Any, status: int, at: str) -> None:
    with backend_at(canned(http(b"", status=f"{status} x", more=f"location: {at}\r\n"))) as backend:
        with pytest.raises(BackendError, match=rf"status {status} and redirects to .*//other:81/v2; give the") as moved:
            either(backend)
    assert SECRET not in str(moved.value)
    assert "me:" not in str(moved.value)


# ---- the other routes


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_list_of_models_is_read_however_it_is_compressed(canned: Any, encoding: str) -> None:
    listed = PACKED[encoding](json.dumps({"data": [{"id": "m", "max_model_len": 50}]}).encode())
    url = canned(http(listed, more=f"content-encoding: {encoding}\r\n"))
    assert [model.entry.id for model in discover(url, pricing={"m": Pricing()})] == ["m"]


def test_a_refused_list_is_shown_however_it_is_compressed(canned: Any) -> None:
    report = gzip.compress(b'{"error": {"message": "down for now"}}')
    url = canned(http(report, status="500 x", more="content-encoding: gzip\r\n"))
    with pytest.raises(BackendError, match="down for now"):
        discover(url, pricing={"m": Pricing()})


def test_tokens_are_read_however_they_are_compressed(canned: Any) -> None:
    url = canned(http(gzip.compress(b'{"tokens": [1, 2]}'), more="content-encoding: gzip\r\n"))
    with backend_at(url) as backend:
        assert tuple(backend.tokens(request_of(), served(backend))) == (1, 2)


def test_a_compressed_answer_of_the_other_routes_is_bounded(canned: Any) -> None:
    bomb = gzip.compress(b" " * (MOST_WHOLE + 1))
    with backend_at(canned(http(bomb, more="content-encoding: gzip\r\n"))) as backend:
        with pytest.raises(BackendError, match="longer than"):
            backend.tokens(request_of(), served(backend))
