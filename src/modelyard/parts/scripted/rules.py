"""Rules of a script: which requests a rule matches, which rule answers a request, and why none does."""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Message, ResponseType, Role
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, NoAnswerPrepared
from modelyard.parts.scripted.answers import Answer, usage_of

Wanted = str | re.Pattern[str] | Callable[[str], bool]
"""A condition on a string: a string (equal to it or contained in it, depending on the condition), a pattern found in
it, or a predicate."""

Script = Callable[[CompletionRequest], Answer]
"""A function that answers every request."""

_MOST_SHOWN = 3
_SHOWN = 200


@attrs.frozen(eq=False)
class Rule:
    """The result of `on(...).answer(...)`: conditions that must all hold, and the answers to give one after the other.

    A rule is a value without a history: the backend that holds it records what it answered. The last answer is
    repeated, unless `repeats` is False.
    """

    conditions: Mapping[str, Any] = EMPTY
    answers: tuple[Answer, ...] = ()
    repeats: bool = True

    def answer(self, *answers: Answer) -> "Rule":
        """Return the rule with these answers: the first for the first matching request, and so on; the last one
        repeats.

        An exception is raised in its turn, so `answer(Overloaded("busy"), "done")` fails once and then succeeds.
        """
        kept = (tuple(answer) if isinstance(answer, Iterator) else answer for answer in answers)
        return attrs.evolve(self, answers=tuple(kept))

    def unmet(self, request: CompletionRequest) -> Iterator[str]:
        """Yield a sentence for each condition that the request does not meet; nothing if the rule matches."""
        return filter(None, (_CONDITIONS[name](self.conditions, request) for name in self.conditions))

    def __repr__(self) -> str:
        return f"on({', '.join(f'{name}={_shown(wanted)}' for name, wanted in self.conditions.items())})"


def on(
    text: Wanted | None = None,
    *,
    model: Wanted | None = None,
    tool: Wanted | None = None,
    called: Wanted | None = None,
    format: ResponseType | str | None = None,
    when: Callable[[CompletionRequest], bool] | None = None,
) -> Rule:
    """Create a rule for the requests that meet all conditions; without any condition, for every request.

    `text`: the last message contains this; if that is a tool's result, only together with `tool`, so that a rule for a
    question never answers a tool's result. `model`: the requested model name. `tool`: the last message is the result of
    this tool. `called`: this tool was called before, anywhere in the conversation. `format`: the response format
    ("text", "json_object", "json_schema") or the name of its schema. `when`: any other predicate.

    >>> on("refund", model="support").answer("Sure.")
    on(text='refund', model='support')
    """
    given = {"text": text, "model": model, "tool": tool, "called": called, "format": format, "when": when}
    return Rule({name: wanted for name, wanted in given.items() if wanted is not None})


def rules_of(answers: Sequence[Rule | Answer] | Script) -> Sequence[Rule]:
    """Return rules unchanged; a function or a list becomes one rule for every request.

    Each answer of a list is given once. Raises `InvalidInput` for a rule without an answer, and for other objects among
    rules.
    """
    if callable(answers):
        return (on().answer(answers),)
    if any(isinstance(answer, Rule) for answer in answers):
        return [_checked(rule, at) for at, rule in enumerate(answers)]
    return (Rule(answers=tuple(answers), repeats=False),)


def _checked(rule: Any, at: int) -> Rule:
    if not isinstance(rule, Rule):
        raise InvalidInput.at(
            "answers", at, msg="is not a rule, but others are; to answer all other requests use on().answer(...)"
        )
    if not rule.answers:
        raise InvalidInput.at("answers", at, msg=f"{rule!r} has no answer; end it with .answer(...)")
    return rule


class RuleBook:
    """Finds the first rule that matches a request, and returns its next answer. Thread-safe.

    `answered` are the rules that answered, oldest first.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._left = {rule: deque(rule.answers) for rule in rules}
        answers = [answer for rule in rules for answer in rule.answers]
        self._reports = any(map(usage_of, answers))
        self._lock = threading.Lock()
        self.answered: list[Rule] = []

    @property
    def unused(self) -> list[Rule]:
        with self._lock:
            return [rule for rule in self._rules if rule not in self.answered]

    def next(self, request: CompletionRequest) -> Answer:
        rule = self._rule_for(request)
        with self._lock:
            left = self._left[rule]
            if not left:
                raise NoAnswerPrepared.at("messages", msg=_used_up(rule, request))
            self.answered.append(rule)
            return left[0] if rule.repeats and len(left) == 1 else left.popleft()

    def upcoming(self, request: CompletionRequest) -> Answer | None:
        """Return the answer that this request would get now; None if there is none, or if no answer reports usage."""
        rule = self._match(request) if self._reports else None
        with self._lock:
            return self._left[rule][0] if rule is not None and self._left[rule] else None

    def _rule_for(self, request: CompletionRequest) -> Rule:
        rule = self._match(request)
        if rule is None:
            raise NoAnswerPrepared.at("messages", msg=_no_match(self._rules, request))
        return rule

    def _match(self, request: CompletionRequest) -> Rule | None:
        return next((rule for rule in self._rules if next(rule.unmet(request), None) is None), None)


def _used_up(rule: Rule, request: CompletionRequest) -> str:
    held = "1 answer" if len(rule.answers) == 1 else f"{len(rule.answers)} answers"
    return (
        f"the script is used up: it held {held}, and {request.messages[-1].text[:80]!r} needs "
        "one more; give the ScriptedBackend as many answers as choices are requested, or a function"
    )


# ---- the conditions ----------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


def _text(given: Given, request: CompletionRequest) -> str | None:
    last = request.messages[-1]
    if last.role is Role.TOOL and "tool" not in given:
        return _mismatch("text", given, f"the last message is the result of {_tool_of(request)!r}, which needs tool=")
    if _fits(given["text"], last.text, str.__contains__):
        return None
    return _mismatch("text", given, f"the last message is {_short(last.text)}")


def _model(given: Given, request: CompletionRequest) -> str | None:
    if _fits(given["model"], request.model, str.__eq__):
        return None
    return _mismatch("model", given, f"the request names {request.model!r}")


def _tool(given: Given, request: CompletionRequest) -> str | None:
    role, name = request.messages[-1].role, _tool_of(request)
    if role is not Role.TOOL:
        return _mismatch("tool", given, f"the last message is not a tool's result; its role is {role.value}")
    return None if _fits(given["tool"], name, str.__eq__) else _mismatch("tool", given, f"it is the result of {name!r}")


def _called(given: Given, request: CompletionRequest) -> str | None:
    names = [call.name for message in request.messages for call in message.tool_calls]
    if any(_fits(given["called"], name, str.__eq__) for name in names):
        return None
    return _mismatch("called", given, f"{', '.join(map(repr, names)) or 'no tool'} was called before")


def _format(given: Given, request: CompletionRequest) -> str | None:
    requested = request.response_format
    if given["format"] in (requested.type, requested.name):
        return None
    name = f" {requested.name!r}" if requested.name else ""
    return _mismatch("format", given, f"the request's is {requested.type.value}{name}")


def _when(given: Given, request: CompletionRequest) -> str | None:
    return None if given["when"](request) else _mismatch("when", given, "it returned False")


_CONDITIONS: Mapping[str, Callable[[Given, CompletionRequest], str | None]] = {
    "text": _text,
    "model": _model,
    "tool": _tool,
    "called": _called,
    "format": _format,
    "when": _when,
}


def _fits(wanted: Wanted, text: str, compare: Callable[[str, str], bool]) -> bool:
    if isinstance(wanted, str):
        return compare(text, wanted)
    if isinstance(wanted, re.Pattern):
        return wanted.search(text) is not None
    return wanted(text)


def _tool_of(request: CompletionRequest) -> str:
    last: Message = request.messages[-1]
    for message in reversed(request.messages):
        for call in message.tool_calls:
            if call.id == last.tool_call_id:
                return call.name
    return last.name or ""


# ---- no rule matches --------------------------------------------------------------------------------------------


def _no_match(rules: Sequence[Rule], request: CompletionRequest) -> str:
    """Describe the request, and the rules that come nearest: those with the fewest conditions that do not hold."""
    last = request.messages[-1]
    described = f"model {request.model!r}, last message ({last.role.value}) {_short(last.text)}"
    mismatches = [(at, rule, [*rule.unmet(request)]) for at, rule in enumerate(rules, 1)]
    least = min((len(unmet) for _, _, unmet in mismatches), default=0)
    nearest = [f"rule {at}, {rule!r}: {'; '.join(unmet)}" for at, rule, unmet in mismatches if len(unmet) == least]
    lines = nearest[:_MOST_SHOWN] or ["there are no rules"]
    return "\n  ".join([f"no rule of the script answers this request: {described}; nearest:", *lines])


def _mismatch(name: str, given: Given, found: str) -> str:
    return f"{name}={_shown(given[name])}, but {found}"


def _shown(wanted: object) -> str:
    if callable(wanted):
        return getattr(wanted, "__name__", "a function")
    return repr(wanted.value if isinstance(wanted, ResponseType) else wanted)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
