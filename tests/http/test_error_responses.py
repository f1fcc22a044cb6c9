"""The bodies of errors."""

from modelyard.errors import Conflict, Problem
from modelyard.formats.converter import unstructure
from modelyard.http.error_responses import ProblemsBody, chat_body, place, sentence

PROBLEMS = [
    Problem(("body", "messages", 0, "role"), "must be 'user'", "literal_error"),
    Problem(("body",), "must be an object"),
]


def test_a_chat_error_always_has_its_four_keys() -> None:
    error = {"message": "m", "type": "invalid_request_error", "param": None, "code": Conflict.code}
    assert chat_body(Conflict("m"), 409) == {"error": error}


def test_a_list_of_problems_has_locations_of_strings_and_nothing_of_the_input() -> None:
    assert unstructure(ProblemsBody.of(PROBLEMS)) == {
        "detail": [
            {"loc": ["body", "messages", "0", "role"], "msg": "must be 'user'", "type": "literal_error"},
            {"loc": ["body"], "msg": "must be an object", "type": "value_error"},
        ]
    }


def test_places_read_as_a_person_writes_them() -> None:
    assert [place(problem) for problem in PROBLEMS] == ["messages[0].role", ""]
    assert place(Problem(("limit",), "x")) == "limit"
    assert sentence(PROBLEMS) == "messages[0].role: must be 'user'; the body must be an object"
