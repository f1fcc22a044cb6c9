"""Why a choice has ended, in the words of any server."""

import re
from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason

_NAMES = {
    FinishReason.STOP: (
        "stop eos eos_token eos_token_id end end_turn end_of_turn stop_sequence stop_token complete completed done "
        "finish finished normal pause_turn"
    ),
    FinishReason.LENGTH: (
        "length max_tokens max_token max_output_tokens max_new_tokens max_completion_tokens max_length model_length "
        "token_limit error_limit context_length context_length_exceeded model_context_window_exceeded incomplete"
    ),
    FinishReason.TOOL_CALLS: "tool_calls tool_call tool_use function_call function_calls tool",
    FinishReason.CONTENT_FILTER: (
        "content_filter content_filtered filtered safety image_safety refusal recitation blocklist "
        "prohibited_content spii sensitive moderation guardrail_intervened guardrails error_toxic"
    ),
}
_REASONS: Mapping[str, FinishReason] = {
    name.replace("_", ""): reason for reason, names in _NAMES.items() for name in names.split()
}
"""What servers and families of models call the reasons for the end of a choice: letters alone, in lower case."""
_NOT_ENDED = frozenset({"", "null", "none", "notfinished", "unspecified"})
_FILTERED = re.compile("filter|safety|polic|block|harm|moderat|prohibit|refus|violat|toxic")
_BROKEN_OFF = re.compile("error|abort|fail|crash|exception|unavailable|insufficientsystemresource")
_CUT = re.compile("timeout|timedout|deadline|cancel|interrupt|preempt|disconnect")
_LONG = re.compile("length|limit|max|truncat|budget|incomplete")


NAMES = ("finish_reason", "finishReason", "stop_reason", "done_reason")
"""Members of a choice that say why it has ended: that of the format, and others where it is missing."""


def reason_in(choice: Mapping[str, Any]) -> Any:
    """Return what a choice says of its end, itself or in its message; None if it has not ended."""
    for owner in (choice, choice.get("delta"), choice.get("message")):
        if isinstance(owner, Mapping):
            for name in NAMES:
                if owner.get(name) is not None:
                    return owner[name]
    return None


@attrs.frozen
class Ending:
    """The end of a choice. It is not complete if it `is_broken_off`, and if it `is_cut` before it has anything."""

    reason: FinishReason
    is_known: bool = False
    is_broken_off: bool = False
    is_cut: bool = False


def read_reason(value: Any) -> Ending | None:
    """Return how a choice has ended; None if it has not. A name that is not known is taken by the words in it."""
    if value is None or value is False:
        return None
    name = _name(value)
    if name is None:
        return Ending(FinishReason.STOP)
    if name in _NOT_ENDED:
        return None
    known = _REASONS.get(name)
    return _of_words(name) if known is None else Ending(known, is_known=True)


def _of_words(name: str) -> Ending:
    if _FILTERED.search(name):
        return Ending(FinishReason.CONTENT_FILTER)
    if _BROKEN_OFF.search(name):
        return Ending(FinishReason.LENGTH, is_broken_off=True)
    if _CUT.search(name):
        return Ending(FinishReason.LENGTH, is_cut=True)
    return Ending(FinishReason.LENGTH if _LONG.search(name) else FinishReason.STOP)


def _name(value: Any) -> str | None:
    """Return the letters of a reason, also of an object with a type, as a library prints it, or before its details;
    None for neither.
    """
    name = value.get("type") if isinstance(value, Mapping) else value
    if not isinstance(name, str):
        return None
    plain = name.partition(":")[0].strip().rpartition(".")[2]
    return re.sub("[^a-z]", "", plain.lower()).removeprefix("finishreason")
