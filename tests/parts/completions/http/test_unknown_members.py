"""Every object of a request that continues a prompt refuses a member that it does not know, at its place."""

from typing import Any

import pytest

from modelyard.parts.completions.formats.generate import SAMPLING_WITHOUT_EFFECT, GenerateBody
from modelyard.parts.completions.formats.request import CompletionBody
from unknown_members import has_reasons, misspelt, without_effect

FREE = {"logit_bias", "json", "parameters"}
TEXT: dict[str, Any] = {
    "model": "tabular-mini",
    "prompt": "hi",
    "max_tokens": 2,
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": True},
    "nvext": {"extra_fields": []},
    "spaces_between_special_tokens": True,
}
IDS: dict[str, Any] = {
    "model": "tabular-mini",
    "token_ids": [1, 2],
    "sampling_params": {"max_tokens": 2, "temperature": 0.5, "stop": [], "detokenize": False},
    "request_id": "r",
}
TOKENS: dict[str, Any] = {
    "model": "tabular-mini",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
ASKED = [
    ("/v1/completions", TEXT),
    ("/inference/v1/completions", TEXT),
    ("/inference/v1/generate", IDS),
    ("/tokenize", TOKENS),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name(
    client: Any, path: str, body: Any
) -> None:
    assert client.send("POST", path, body).status == 200
    for name, place, changed in misspelt(body, FREE):
        refused = client.send("POST", path, changed, check=False)
        assert (refused.status, refused.json["error"]["param"]) == (400, place), refused.json
        assert f"'{name}'" in refused.json["error"]["message"] or name in SAMPLING_WITHOUT_EFFECT


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    listed = {**without_effect(CompletionBody), **without_effect(GenerateBody), **SAMPLING_WITHOUT_EFFECT}
    has_reasons(listed, "stream_options.include_obfuscation", "nvext", "output_kind")
