"""The lines of a batch: reading and checking requests, writing answers."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import attrs

from modelyard.errors import InvalidInput, ModelyardError, nearest
from modelyard.formats.converter import UNKNOWN
from modelyard.formats.json import dumps, loads
from modelyard.formats.jsonl import MAX_ROW
from modelyard.http.error_responses import chat_body, place, sentence
from modelyard.parts.batches.endpoints import LineAnswer
from modelyard.parts.batches.records import MAX_LINES, BatchProblem

MAX_CUSTOM_ID = 512
MAX_PROBLEMS = 100
_MEMBERS = ("custom_id", "method", "url", "body")
SERVER_ERROR = 500


@attrs.frozen
class Line:
    """One request of a batch: the number of its line, from 1, the id that its client chose, and its body."""

    number: int
    custom_id: str
    body: Mapping[str, Any]


@attrs.frozen
class ResultLine:
    """The outcome of a request, as a line of a file; `ok` says of which file."""

    line: bytes
    ok: bool


# ---- what is asked -----------------------------------------------------------------------------------------------


def read_lines(file: BinaryIO, endpoint: str) -> Iterator[Line]:
    """Yield the requests of a file. Raises `InvalidInput` at a line that `problems_in` would report."""
    for number, text in _texts(file):
        yield _line(number, text, endpoint)


def problems_in(file: BinaryIO, endpoint: str) -> tuple[int, list[BatchProblem]]:
    """Return how many requests a file has, and what is wrong with them: the first hundred problems.

    It remembers a digest of each `custom_id`, and nothing else of a line.
    """
    count, problems, seen = 0, list[BatchProblem](), set[bytes]()
    for number, text in _texts(file):
        count += 1
        if count > MAX_LINES:
            problems.append(BatchProblem("too_many_lines", f"a batch has at most {MAX_LINES} lines", number))
            break
        try:
            line = _line(number, text, endpoint)
        except InvalidInput as wrong:
            first = wrong.problems[0]
            param = place(first).removeprefix(f"line[{number}]").removeprefix(".") or None
            problems.append(BatchProblem("invalid_line", sentence([first]), number, param))
        else:
            mark = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
            if mark in seen:
                says = f"custom_id {line.custom_id!r} was used by an earlier line"
                problems.append(BatchProblem("duplicate_custom_id", says, number, "custom_id"))
            seen.add(mark)
        if len(problems) >= MAX_PROBLEMS:
            break
    if not count:
        problems.append(BatchProblem("empty_file", "the input file has no lines"))
    return count, problems


def _texts(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, text in enumerate(iter(lambda: file.readline(MAX_ROW + 1), b""), start=1):
        if not text.isspace():
            yield number, text


def _line(number: int, text: bytes, endpoint: str) -> Line:
    at = ("line", number)
    if len(text) > MAX_ROW:
        raise InvalidInput.at(*at, msg=f"must not be longer than {MAX_ROW} bytes")
    row = loads(text, at=at)
    if not isinstance(row, dict):
        raise InvalidInput.at(*at, msg="must be a JSON object")
    for name in row:
        if name not in _MEMBERS:
            msg = f"is not a member of a line{nearest(name, _MEMBERS)}"
            raise InvalidInput.at(*at, name, msg=msg, type=UNKNOWN)
    custom_id, body = row.get("custom_id"), row.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        raise InvalidInput.at(*at, "custom_id", msg=f"must be a string of 1 to {MAX_CUSTOM_ID} characters")
    if row.get("method") != "POST":
        raise InvalidInput.at(*at, "method", msg='must be "POST"')
    if row.get("url") != endpoint:
        raise InvalidInput.at(*at, "url", msg=f'must be "{endpoint}", the endpoint of the batch')
    if not isinstance(body, dict):
        raise InvalidInput.at(*at, "body", msg="must be a JSON object")
    return Line(number, custom_id, body)


# ---- what is answered --------------------------------------------------------------------------------------------


def answer_line(id: str, line: Line, answered: LineAnswer) -> ResultLine:
    return ResultLine(_response(id, line, 200, answered.id, answered.body), True)


def failure_line(id: str, line: Line, failure: Exception) -> ResultLine:
    status = failure.status if isinstance(failure, ModelyardError) else SERVER_ERROR
    if isinstance(failure, InvalidInput):
        status = 400
    if isinstance(failure, ModelyardError) and status != SERVER_ERROR:
        return ResultLine(_response(id, line, status, id, dumps(chat_body(failure, status))), False)
    code = failure.code if isinstance(failure, ModelyardError) else ModelyardError.code
    says = "the request failed; ask the host to look into the worker's log"
    error = {"message": says, "type": "server_error", "param": None, "code": code}
    return ResultLine(_response(id, line, status, id, dumps({"error": error})), False)


def expired_line(id: str, line: Line) -> bytes:
    error = {"code": "batch_expired", "message": "this request could not be answered before the batch expired"}
    return dumps({"id": id, "custom_id": line.custom_id, "response": None, "error": error}) + b"\n"


def _response(id: str, line: Line, status: int, request_id: str, body: bytes) -> bytes:
    head = dumps({"id": id, "custom_id": line.custom_id})[:-1]
    about = dumps({"status_code": status, "request_id": request_id})[:-1]
    return head + b',"response":' + about + b',"body":' + body + b'},"error":null}\n'
