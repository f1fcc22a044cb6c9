"""Rules of a script: which requests one answers, which rule answers a request, and what was wrong where none does."""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.backends.scripted.answers import Answer, Said
from modelyard.domain.completion import CompletionRequest, Message, ResponseType, Role, Usage
from modelyard.domain.record import EMPTY
from modelyard.errors import BackendError, InvalidInput, NoAnswerPrepared

Wanted = str | re.Pattern[str] | Callable[[str], bool]
"""What a text must be: a string (equal to it, or within it: the condition says which), a pattern found in it, or a
function that says yes to it."""

Script = Callable[[CompletionRequest], Answer]
"""What answers every request."""

_MOST_SHOWN = 3
_SHOWN = 200


@attrs.frozen(eq=False)
class Rule:
    """`on(...).answer(...)`: the conditions, all of which must hold, and the answers, one after the other.

    A rule is a value without a history: what it answered is told by the backend that holds it. The last answer is given
    again and again, unless `repeats` is False.
    """

    conditions: Mapping[str, Any] = EMPTY
    answers: tuple[Answer, ...] = ()
    repeats: bool = True

    def answer(self, *answers: Answer) -> "Rule":
        """The rule with these answers: the first for the first request that it fits and so on, the last from then on.

        An exception is raised in its turn, so `answer(Overloaded("busy"), "done")` fails once and then succeeds.
        """
        kept = (tuple(answer) if isinstance(answer, Iterator) else answer for answer in answers)
        return attrs.evolve(self, answers=tuple(kept))

    def unmet(self, request: CompletionRequest) -> Iterator[str]:
        """What of the request is not as this rule wants it, one sentence each; nothing when it answers."""
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
    """A rule for the requests that are so; without any condition, for every request.

    `text`: the last message contains this; where that is a tool's result, only together with `tool`, so that a rule for
    a question never answers what a tool brought. `model`: the name that was asked for. `tool`: the last message is the
    result of this tool. `called`: this tool was called before, anywhere in the conversation. `format`: the response
    format ("text", "json_object", "json_schema") or the name of its schema. `when`: anything else.

    >>> on("refund", model="support").answer("Sure.")
    on(text='refund', model='support')
    """
    given = {"text": text, "model": model, "tool": tool, "called": called, "format": format, "when": when}
    return Rule({name: wanted for name, wanted in given.items() if wanted is not None})


def rules_of(answers: Sequence[Rule] | Sequence[Answer] | Script) -> Sequence[Rule]:
    """Rules as they are; a function or a list is one rule for every request, and what a list holds is given once.

    Raises `InvalidInput` for a rule without an answer, and for what is no rule among rules.
    """
    if callable(answers):
        return (on().answer(answers),)
    if any(isinstance(answer, Rule) for answer in answers):
        return [_checked(rule, at) for at, rule in enumerate(answers)]
    return (Rule(answers=tuple(answers), repeats=False),)


def _checked(rule: Any, at: int) -> Rule:
    if not isinstance(rule, Rule):
        raise InvalidInput.at("answers", at, msg="is no rule, as others are; for what no rule fits: on().answer(...)")
    if not rule.answers:
        raise InvalidInput.at("answers", at, msg=f"{rule!r} says nothing; end it with .answer(...)")
    return rule


class RuleBook:
    """Finds the first rule that answers a request, and gives its next answer. Thread-safe.

    `answered` are the rules that did, oldest first.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._left = {rule: deque(rule.answers) for rule in rules}
        self._reports = any(isinstance(answer, Said) and answer.usage for rule in rules for answer in rule.answers)
        self._lock = threading.Lock()
        self.answered: list[Rule] = []

    @property
    def unused(self) -> list[Rule]:
        """The rules that have answered nothing."""
        with self._lock:
            return [rule for rule in self._rules if rule not in self.answered]

    def next(self, request: CompletionRequest) -> Answer:
        """The answer to this request. Raises `NoAnswerPrepared`, and `BackendError` when a list is used up."""
        rule = self._rule_for(request)
        with self._lock:
            left = self._left[rule]
            if not left:
                raise BackendError(_used_up(rule, request))
            self.answered.append(rule)
            return left[0] if rule.repeats and len(left) == 1 else left.popleft()

    def usage_to_come(self, request: CompletionRequest) -> Usage | None:
        """What the answer to this request reports, if it does. Raises `NoAnswerPrepared`."""
        if not self._reports:
            return None
        left = self._left[self._rule_for(request)]
        with self._lock:
            answer = left[0] if left else None
        return answer.usage if isinstance(answer, Said) else None

    def _rule_for(self, request: CompletionRequest) -> Rule:
        for rule in self._rules:
            if next(rule.unmet(request), None) is None:
                return rule
        raise NoAnswerPrepared.at("messages", msg=_nobody(self._rules, request))


def _used_up(rule: Rule, request: CompletionRequest) -> str:
    return (
        f"the script is used up: it held {len(rule.answers)} answers, and {request.messages[-1].text[:80]!r} asks for "
        "one more; give the ScriptedBackend as many answers as choices are asked for, or a function"
    )


# ---- the conditions ----------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


def _text(given: Given, request: CompletionRequest) -> str | None:
    last = request.messages[-1]
    if last.role is Role.TOOL and "tool" not in given:
        return _fault("text", given, f"the last message is the result of {_tool_of(request)!r}, which needs tool=")
    if _fits(given["text"], last.text, str.__contains__):
        return None
    return _fault("text", given, f"the last message says {_short(last.text)}")


def _model(given: Given, request: CompletionRequest) -> str | None:
    if _fits(given["model"], request.model, str.__eq__):
        return None
    return _fault("model", given, f"the request names {request.model!r}")


def _tool(given: Given, request: CompletionRequest) -> str | None:
    role, name = request.messages[-1].role, _tool_of(request)
    if role is not Role.TOOL:
        return _fault("tool", given, f"the last message is no tool's result, but of the role {role.value}")
    return None if _fits(given["tool"], name, str.__eq__) else _fault("tool", given, f"it is the result of {name!r}")


def _called(given: Given, request: CompletionRequest) -> str | None:
    names = [call.name for message in request.messages for call in message.tool_calls]
    if any(_fits(given["called"], name, str.__eq__) for name in names):
        return None
    return _fault("called", given, f"{', '.join(map(repr, names)) or 'no tool'} was called before")


def _format(given: Given, request: CompletionRequest) -> str | None:
    asked = request.response_format
    if given["format"] in (asked.type, asked.name):
        return None
    return _fault("format", given, f"the request asks for {asked.type.value}{f' {asked.name!r}' if asked.name else ''}")


def _when(given: Given, request: CompletionRequest) -> str | None:
    return None if given["when"](request) else _fault("when", given, "it says no to the request")


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
    """The name of the tool whose result the last message is, as it was called."""
    last: Message = request.messages[-1]
    for message in reversed(request.messages):
        for call in message.tool_calls:
            if call.id == last.tool_call_id:
                return call.name
    return last.name or ""


# ---- where nothing answers ---------------------------------------------------------------------------------------


def _nobody(rules: Sequence[Rule], request: CompletionRequest) -> str:
    """What was asked, and the rules that come nearest: those with the fewest conditions that do not hold."""
    last = request.messages[-1]
    asked = f"model {request.model!r}, last message ({last.role.value}) {_short(last.text)}"
    faults = [(at, rule, [*rule.unmet(request)]) for at, rule in enumerate(rules, 1)]
    least = min((len(unmet) for _, _, unmet in faults), default=0)
    nearest = [f"rule {at}, {rule!r}: {'; '.join(unmet)}" for at, rule, unmet in faults if len(unmet) == least]
    lines = nearest[:_MOST_SHOWN] or ["there are no rules"]
    return "\n  ".join([f"no rule of the script answers this request: {asked}; nearest:", *lines])


def _fault(name: str, given: Given, found: str) -> str:
    return f"{name}={_shown(given[name])}, but {found}"


def _shown(wanted: object) -> str:
    if callable(wanted):
        return getattr(wanted, "__name__", "a function")
    return repr(wanted.value if isinstance(wanted, ResponseType) else wanted)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
