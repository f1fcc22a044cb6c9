"""What servers and proxies put around an answer: statuses, compression, labels, redirects, envelopes."""

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from each import each_case
from modelyard.backends import Timeouts
from modelyard.backends.deltas import one_by_one
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, ModelyardError, Overloaded
from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.decoding import MOST_AT_ONCE, Decompressor, encoding_of
from modelyard.parts.upstream.errors import Head, RetryableError, refusal
from modelyard.parts.upstream.response import UpstreamResponse
from modelyard.parts.upstream.transport import AsyncTransport, BlockingTransport
from modelyard.testing.clock import ManualClock
from upstream_asking import SECRET, TIMEOUTS, Hurried, ask, backend_at, http, request_of, served, text_of

WHOLE = {
    "choices": [{"index": 0, "message": {"content": "hi there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2},
}
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "hi"}}]},
    {"choices": [{"index": 0, "delta": {"content": " there"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": WHOLE["usage"]},
]
DOCUMENT = json.dumps(WHOLE).encode()
STREAM = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in CHUNKS) + b"data: [DONE]\n\n"
BODIES = each_case("body", [DOCUMENT, STREAM], ids=["whole", "streamed"])
ONCE = Timeouts(retries=0)


def deflated(body: bytes) -> bytes:
    """Deflate without a header, as some servers send it."""
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


def in_members(body: bytes) -> bytes:
    """A body as two files of gzip that follow each other."""
    return gzip.compress(body[:20]) + gzip.compress(body[20:])


def twice(body: bytes) -> bytes:
    return gzip.compress(gzip.compress(body))


def in_gzip(body: bytes) -> bytes:
    """A body that was deflated, and then packed as a file of gzip."""
    return gzip.compress(deflated(body))


PACKINGS = {
    "gzip": gzip.compress,
    "x-gzip": in_members,
    "deflate": zlib.compress,
    "Deflate": deflated,
    "gzip, gzip": twice,
    "Gzip": twice,
    "deflate, gzip": in_gzip,
    "gzip ,deflate": lambda body: zlib.compress(twice(body)),
}


class TestCompression:
    @BODIES
    @each_case("name", PACKINGS)
    def test_an_answer_is_read_however_it_is_compressed(self, canned: Any, either: Any, body: bytes, name: str) -> None:
        packed = PACKINGS[name](body)
        with backend_at(canned(http(packed, "text/x", more=f"content-encoding: {name}\r\n"))) as backend:
            deltas = either(backend, streamed=body is STREAM)
        assert text_of(deltas) == "hi there"
        assert deltas[-1].usage.prompt_tokens == 10

    @BODIES
    def test_its_first_bytes_tell_more_than_its_label(self, canned: Any, body: bytes) -> None:
        plain_as_gzip = http(body, more="content-encoding: gzip\r\n")
        gzip_as_plain = http(gzip.compress(body))
        for answer in (plain_as_gzip, gzip_as_plain):
            with backend_at(canned(answer)) as backend:
                assert text_of(ask(backend)) == "hi there"

    def test_the_report_of_a_refusal_is_read(self, canned: Any, either: Any) -> None:
        report = gzip.compress(b'{"error": {"message": "maximum context length is 9 tokens"}}')
        refused = http(report, status="400 Bad Request", more="content-encoding: gzip\r\n")
        with backend_at(canned(refused)) as backend, pytest.raises(ContextLengthExceeded, match="is 9 tokens"):
            either(backend)

    @each_case("name", ["br", "zstd", "gzip, br", "x-unknown"])
    def test_what_is_not_read_is_refused_by_name(self, canned: Any, either: Any, name: str) -> None:
        answer = http(b"\x00\x01", more=f"content-encoding: {name}\r\n")
        with (
            backend_at(canned(answer)) as backend,
            pytest.raises(BackendError, match="is compressed with"),
        ):
            either(backend)

    @each_case(
        ("name", "body"),
        [("br", b"\x00\x01"), ("zstd, gzip", gzip.compress(b"\x28\xb5", mtime=0)), ("gzip", b"\x1f\x8b no")],
        ids=["br", "zstd, gzip", "gzip"],
    )
    @each_case("streamed", [False, True])
    def test_the_prompt_of_an_answer_that_cannot_be_read_is_booked(
        self, canned: Any, name: str, body: bytes, streamed: bool
    ) -> None:
        deltas: list[Any] = []
        answer = http(body, more=f"content-encoding: {name}\r\n")
        with backend_at(canned(answer)) as backend, pytest.raises(BackendError, match="is compressed"):
            deltas.extend(one_by_one(backend.stream(request_of(streamed=streamed), served(backend))))
        (usage,) = [delta.usage for delta in deltas]
        assert (usage.prompt_tokens > 0, usage.completion_tokens, usage.estimated) == (True, 0, True)

    def test_a_wrong_compression_is_an_error(self, canned: Any, either: Any) -> None:
        answer = http(b"\x1f\x8b nonsense", more="content-encoding: gzip\r\n")
        with backend_at(canned(answer)) as backend, pytest.raises(BackendError, match="compressed wrongly"):
            either(backend)

    @pytest.mark.slow
    def test_a_small_answer_does_not_become_a_large_one_in_memory(self) -> None:
        bomb = gzip.compress(b"\0" * 2**26)
        reader = Decompressor("gzip", bomb)
        sizes = [len(reader.take()) for _ in range(2**26 // MOST_AT_ONCE)]
        assert set(sizes) == {MOST_AT_ONCE}
        assert reader.take() == b""

    @given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=6), st.sampled_from(sorted(PACKINGS)))
    def test_a_body_is_the_same_however_it_is_cut(self, body: bytes, cuts: list[int], name: str) -> None:
        packed = PACKINGS[name](body)
        begin, rest = packed[:2], packed[2:]
        places = sorted({0, len(rest), *(min(cut, len(rest)) for cut in cuts)})
        encoding = encoding_of(name.lower(), begin)
        assume("deflate" not in name.lower() or encoding_of("deflate", deflated(body)[:2]) == "deflate")
        assume(encoding == ("deflate" if name.lower().endswith("deflate") else "gzip"))
        assume(not body.startswith(b"\x1f\x8b"))
        reader, found = Decompressor(encoding, begin, name.lower()), b""
        for start, end in pairwise(places):
            reader.feed(rest[start:end])
            while piece := reader.take():
                found += piece
        assert found == body


class TestLabels:
    @BODIES
    @each_case(
        "label", ["", "text/plain; charset=utf-8", "application/octet-stream", "Text/Event-Stream", "application/json"]
    )
    @each_case("before", [b"", b"\xef\xbb\xbf", b"\n\n"])
    def test_an_answer_is_read_whatever_it_is_called(
        self, canned: Any, either: Any, body: bytes, label: str, before: bytes
    ) -> None:
        with backend_at(canned(http(before + body, label))) as backend:
            assert text_of(either(backend, streamed=body is STREAM)) == "hi there"

    @pytest.mark.parametrize("body", [DOCUMENT, STREAM], ids=["whole", "streamed"])
    @pytest.mark.parametrize("first", [*range(1, 9), 12])
    def test_a_few_first_bytes_are_waited_for(
        self, canned: Any, either: Any, body: bytes, first: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept: list[bytes] = []

        def cut(raw: bytes) -> bytes:
            """Have the first bytes come alone."""
            if raw.startswith(body[:6]):
                kept.append(raw[first:])
                return raw[:first]
            return raw

        blocking, on_loops = BlockingTransport.read, AsyncTransport.read

        async def read(transport: Any, seconds: float) -> bytes:
            return kept.pop() if kept else cut(await on_loops(transport, seconds))

        monkeypatch.setattr(AsyncTransport, "read", read)
        monkeypatch.setattr(BlockingTransport, "read", lambda *of: kept.pop() if kept else cut(blocking(*of)))
        with backend_at(canned(http(body, "text/plain"))) as backend:
            assert text_of(either(backend, streamed=body is STREAM)) == "hi there"

    @each_case(
        "body",
        [
            b"\n".join(json.dumps(chunk).encode() for chunk in CHUNKS),
            json.dumps(CHUNKS).encode(),
            DOCUMENT + b"\n\ndata: [DONE]\n\n",
        ],
        ids=["lines of JSON", "a list", "a whole answer, and the end of a stream"],
    )
    def test_values_that_follow_each_other_are_one_answer(self, canned: Any, body: bytes) -> None:
        with backend_at(canned(http(body, "text/event-stream"))) as backend:
            assert text_of(ask(backend)) == "hi there"


class TestStatuses:
    @BODIES
    @each_case("status", ["200 OK", "201 Created", "202 Accepted", "203 x", "206 x", "299 x"])
    def test_an_answer_comes_with_any_success(self, canned: Any, either: Any, status: str, body: bytes) -> None:
        with backend_at(canned(http(body, status=status))) as backend:
            assert text_of(either(backend)) == "hi there"

    @each_case("status", [408, 409, 425, 429, 500, 502, 503, 504, 508, *range(520, 531), 599])
    def test_faults_that_may_pass_are_tried_again(self, canned: Any, status: int) -> None:
        fault = http(b'{"error": {"message": "busy"}}', status=f"{status} x")
        with backend_at(canned(fault, http(DOCUMENT)), clock=Hurried(), timeouts=TIMEOUTS) as backend:
            assert text_of(ask(backend)) == "hi there"

    @each_case("status", [400, 401, 402, 403, 404, 405, 410, 413, 422, 451, 501, 505, 511, 304])
    def test_others_are_not(self, canned: Any, status: int) -> None:
        refused = http(b'{"error": {"message": "no"}}', status=f"{status} x")
        with backend_at(canned(refused), clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with pytest.raises(ModelyardError):
                ask(backend)

    def test_one_that_says_wait_is_busy(self, canned: Any) -> None:
        with backend_at(canned(http(b"", status="529 Overloaded")), timeouts=ONCE) as backend:
            with pytest.raises(Overloaded, match="no room now"):
                ask(backend)


# ---- redirects -------------------------------------------------------------------------------------------------------


@contextmanager
def recorded(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, each on a connection of its own; and the requests that came."""
    listener, requests = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        for answer in answers:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    requests.append(_request(connection))
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def _request(connection: socket.socket) -> bytes:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(65536)
    head, _, body = raw.partition(b"\r\n\r\n")
    length = int(next(line[15:] for line in head.split(b"\r\n") if line.startswith(b"content-length:")))
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


class TestRedirects:
    @each_case("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
    def test_one_within_the_server_is_followed_with_the_same_body(self, either: Any, status: str) -> None:
        elsewhere = http(b"", status=status, more="location: /other/chat?x=1\r\nconnection: close\r\n")
        with recorded(elsewhere, http(DOCUMENT)) as (url, requests), backend_at(f"{url}/v1") as backend:
            assert text_of(either(backend)) == "hi there"
        moved = [request.split(b" ")[1] for request in requests]
        assert moved == [b"/v1/chat/completions", b"/other/chat?x=1"]
        assert requests[0].partition(b"\r\n\r\n")[2] == requests[1].partition(b"\r\n\r\n")[2] != b""

    def test_the_key_never_goes_to_another_server(self, either: Any) -> None:
        with recorded(http(DOCUMENT)) as (other, stolen):
            to = f"location: {other}/v1/chat/completions\r\nconnection: close\r\n"
            redirect = http(b"", status="307 x", more=to)
            with recorded(redirect) as (url, _), backend_at(f"{url}/v1") as backend:
                with pytest.raises(BackendError, match=r"and redirects to http://127\.0\.0\.1"):
                    either(backend)
        assert stolen == []

    def test_a_circle_ends(self) -> None:
        again = http(b"", status="307 x", more="location: /v1/chat/completions\r\nconnection: close\r\n")
        with recorded(*[again] * 8) as (url, requests), backend_at(f"{url}/v1") as backend:
            with pytest.raises(BackendError, match="status 307"):
                ask(backend)
            assert len(requests) == 4

    @each_case(
        ("location", "target"),
        [
            ("/a", "/a"),
            ("b", "/v1/chat/b"),
            ("?q=1", "/v1/chat/completions?q=1"),
            ("http://host:8000/c d", "/c%20d"),
            ("http://host/c", None),
            ("https://host:8000/c", None),
            ("//evil/c", None),
            ("http://[x", None),
            ("ftp://host:8000/c", None),
        ],
    )
    def test_what_a_location_names(self, location: str, target: str | None) -> None:
        assert Address("http://host:8000/v1", None).redirected("/chat/completions", location) == target


# ---- framing -------------------------------------------------------------------------------------------------------

_CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n"
FRAMINGS: dict[str, bytes] = {
    "lines end without CR": b"HTTP/1.1 200 OK\ncontent-length: %d\n\n%b" % (len(DOCUMENT), DOCUMENT),
    "chunks end without CR": b"HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n%x\n%b\n0\n\n"
    % (len(DOCUMENT), DOCUMENT),
    "a length beside chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    + _CHUNKED % (len(DOCUMENT), DOCUMENT),
    "chunks in another coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, x\r\n\r\n%b" % DOCUMENT,
    "spaces after the size of a chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x  \r\n%b\r\n0 \r\n\r\n"
    % (len(DOCUMENT), DOCUMENT),
    "a version of its own": b"HTTP/2.0 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(DOCUMENT), DOCUMENT),
    "a header with control characters": b"HTTP/1.1 200 OK\r\nx: a\x00b\r\ncontent-length: %d\r\n\r\n%b"
    % (len(DOCUMENT), DOCUMENT),
}


class TestFraming:
    @each_case("name", FRAMINGS)
    def test_an_answer_is_read_however_it_is_framed(self, canned: Any, either: Any, name: str) -> None:
        with backend_at(canned(FRAMINGS[name]), timeouts=ONCE) as backend:
            deltas = either(backend)
        assert text_of(deltas) == "hi there"
        assert deltas[-1].usage.prompt_tokens == 10

    def test_a_connection_that_frames_an_answer_twice_is_not_kept(self) -> None:
        response = UpstreamResponse()
        response.feed(FRAMINGS["a length beside chunks"])
        assert (response.complete, response.reusable) == (True, False)

    def test_what_is_not_http_is_named(self, canned: Any, either: Any) -> None:
        with backend_at(canned(b"220 mail.example ready\r\n"), timeouts=ONCE) as backend:
            with pytest.raises(BackendError, match="is not HTTP; the url must be"):
                either(backend)


def test_azure_gets_its_version_and_its_header(canned: Any) -> None:
    address = Address("https://x.example/openai/deployments/m/?api-version=2026-01-01", "key")
    head = address.request("POST", "/chat/completions", b"").decode()
    assert head.startswith("POST /openai/deployments/m/chat/completions?api-version=2026-01-01 HTTP/1.1\r\n")
    assert "\r\napi-key: key\r\n" in head
    assert "uthorization" not in head


# ---- envelopes -------------------------------------------------------------------------------------------------------

ENVELOPES: dict[str, Any] = {
    "the format's": {"error": {"message": "SAID", "code": 1}},
    "a string": {"error": "SAID"},
    "a list": [{"error": {"code": 400, "message": "SAID"}}],
    "code and msg": {"code": 1113, "msg": "SAID"},
    "success": {"success": False, "message": "SAID"},
    "detail": {"detail": "SAID"},
    "detail of FastAPI": {"detail": [{"loc": ["body", "x"], "msg": "SAID", "type": "t"}]},
    "errors": {"errors": [{"message": "SAID"}]},
    "errors as strings": {"errors": ["SAID"]},
    "fault": {"fault": {"faultstring": "SAID", "detail": {"errorcode": "x"}}},
    "base_resp": {"base_resp": {"status_code": 1004, "status_msg": "SAID"}},
    "error_msg": {"error_code": 17, "error_msg": "SAID"},
    "object": {"object": "error", "message": "SAID", "code": 40001},
    "type": {"type": "error", "error": {"type": "overloaded", "message": "SAID"}},
    "a mark": {"error": True, "message": "SAID"},
    "a mark in a list": [{"error": True, "msg": "SAID"}],
    "a number": {"error": 17, "error_description": "SAID"},
    "status": {"status": "error", "reason": "SAID"},
    "exception": {"__type": "ThrottlingException", "message": "SAID"},
    "a capital": {"Message": "SAID"},
}


class TestEnvelopes:
    @each_case("name", ENVELOPES)
    @each_case("status", ["200 OK", "400 Bad Request", "500 x"])
    @each_case("streamed", [False, True])
    def test_what_a_server_says_of_a_failure_is_shown(
        self, canned: Any, name: str, status: str, streamed: bool
    ) -> None:
        said = f"no such thing with key {SECRET}"
        body = json.dumps(ENVELOPES[name]).replace("SAID", said).encode()
        raw = b"data: " + body + b"\n\n" if streamed and not isinstance(ENVELOPES[name], list) else body
        with backend_at(canned(http(raw, status=status)), timeouts=ONCE) as backend:
            with pytest.raises(ModelyardError, match="no such thing") as failed:
                ask(backend, streamed=streamed)
        assert SECRET not in str(failed.value)

    @each_case("status", ["200 OK", "429 x", "402 x", "500 x"])
    @each_case("said", ["Insufficient balance", "You exceeded your current quota", "insufficient_quota"])
    def test_an_account_that_has_run_out_is_the_hosts_to_mend(self, canned: Any, status: str, said: str) -> None:
        body = json.dumps({"error": {"message": said}}).encode()
        with backend_at(canned(http(body, status=status)), clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="must top it up"):
                ask(backend)

    @each_case("begun", [False, True])
    def test_an_envelope_that_ends_a_stream_says_why(self, canned: Any, begun: bool) -> None:
        events = [*CHUNKS[:1] * begun, {"status": "error", "reason": "no such thing"}]
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        with backend_at(canned(http(body, "text/event-stream")), timeouts=ONCE) as backend:
            with pytest.raises(BackendError, match="no such thing"):
                ask(backend)

    def test_a_number_that_marks_an_error_is_not_its_message(self, canned: Any) -> None:
        with backend_at(canned(http(b'{"error": true}', status="500 x")), timeouts=ONCE) as backend:
            with pytest.raises(BackendError, match=r"status 500$"):
                ask(backend)

    def test_a_page_says_that_the_url_is_wrong(self, canned: Any, either: Any) -> None:
        page = b"<!doctype html><html><head><title>Welcome to nginx!</title></head></html>"
        with backend_at(canned(http(page, "text/html"))) as backend, pytest.raises(BackendError, match="a web page"):
            either(backend)
        with backend_at(canned(http(page, "text/html", status="502 x")), timeouts=ONCE) as backend:
            with pytest.raises(BackendError, match="502: Welcome to nginx!"):
                ask(backend)

    def test_the_usage_that_an_error_reports_is_booked(self, canned: Any) -> None:
        body = {"error": {"message": "filtered", "code": 500}, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
        deltas: list[Any] = []
        with backend_at(canned(http(json.dumps(body).encode())), timeouts=ONCE) as backend:
            with pytest.raises(BackendError, match="filtered"):
                deltas.extend(one_by_one(backend.stream(request_of(), served(backend))))
        assert [(delta.usage.prompt_tokens, delta.usage.completion_tokens) for delta in deltas] == [(7, 3)]

    @given(
        st.integers(300, 599),
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 600) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["error", "errors", "message", "code", "detail", "loc", "type", "param", "fault"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    )
    def test_any_refusal_is_a_documented_error(self, status: int, body: Any) -> None:
        failed = refusal(Head(status), json.dumps(body).encode(), SECRET, ManualClock().now())
        assert isinstance(failed, RetryableError)
        assert isinstance(failed.error, BackendError | InvalidInput | Overloaded)
        assert SECRET not in str(failed.error)
