"""Which vendor's rules hold for a request, and a refusal as the body of that vendor's error."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from modelyard.errors import InvalidInput
from modelyard.parts.doubles.vendors import anthropic, openai, vllm
from modelyard.parts.doubles.vendors.refusal import Refusal, member, parsed

Profile = Literal["openai", "anthropic", "vllm"]
"""A vendor whose strictness and errors a double has."""

Rules = Callable[[Mapping[str, Any]], Iterator[Refusal]]

_BY_PATH: Mapping[str, tuple[Profile, Rules]] = {
    "/chat/completions": ("openai", openai.of_chat),
    "/responses": ("openai", openai.of_responses),
    "/responses/input_tokens": ("openai", openai.of_responses),
    "/messages": ("anthropic", anthropic.of_messages),
    "/messages/count_tokens": ("anthropic", anthropic.of_messages),
}
_SHARED = {"/chat/completions"}
"""Paths that other vendors than their own have, too."""

_VLLM_TYPES: Mapping[int, str] = {401: "Unauthorized", 404: "NotFoundError", 503: "ServiceUnavailable"}
_NEW_TEXT = ("BadRequestError", "InternalServerError")


def check_profile(profile: object) -> None:
    """Raise `InvalidInput` for a profile that there is not."""
    if profile is not None and profile not in get_args(Profile):
        known = ", ".join(map(repr, get_args(Profile)))
        raise InvalidInput.at("profile", msg=f"must be one of {known}, or None for the vendor of each format")


def vendor_refusal(profile: Profile | None, method: str, path: str, body: object) -> tuple[int, bytes] | None:
    """Return the status and the body with which a vendor refuses a request; None if it would take it.

    Without a profile the vendor of the request's format decides.
    """
    found = next((end for end in _BY_PATH if path.rstrip("/").endswith(end)), None) if method == "POST" else None
    if found is None or not isinstance(body, dict):
        return None
    vendor, rules = ("vllm", vllm.of_any) if profile == "vllm" else _BY_PATH[found]
    if profile not in (None, vendor):
        return None if found in _SHARED else _shaped(profile, _not_there(profile, path))
    first = next(rules(body), None)
    return None if first is None else _shaped(vendor, first)


def _not_there(profile: Profile | None, path: str) -> Refusal:
    words = "Not found" if profile == "anthropic" else f"Invalid URL (POST {path})"
    return Refusal(words, status=404)


def _shaped(vendor: Profile | None, refusal: Refusal) -> tuple[int, bytes]:
    type_ = "invalid_request_error" if vendor != "vllm" else _NEW_TEXT[0]
    if vendor == "anthropic":
        named = type_ if refusal.status < 404 else "not_found_error"
        body: Any = {"type": "error", "error": {"type": named, "message": refusal.message}}
    else:
        code = refusal.status if vendor == "vllm" else refusal.code
        body = {"error": {"message": refusal.message, "type": type_, "param": refusal.param, "code": code}}
    return refusal.status, json.dumps(body).encode()


def vendor_error(profile: Profile | None, status: int, body: bytes) -> bytes:
    """Return the body of an error of the platform's as the vendor has it: that of vLLM has a type and a code of its
    own, and those of the others are the platform's."""
    found = member(parsed(body), "error") if profile == "vllm" else None
    if not isinstance(found, dict) or "message" not in found:
        return body
    type_ = _VLLM_TYPES.get(status, _NEW_TEXT[status >= 500])
    error = {"message": found["message"], "type": type_, "param": found.get("param"), "code": status}
    return json.dumps({"error": error}).encode()
