"""The public forms of one row, and which of them a row is in. A row is converted if exactly one form fits it, and
refused by name otherwise: what it means is never guessed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.parts.readers.conversion import (
    alpaca,
    alpaca_preference,
    as_it_is,
    implicit_preference,
    openai_preference,
    prompt_completion,
    prompt_preference,
    sharegpt,
    sharegpt_preference,
)

Row = Mapping[str, Any]


@attrs.frozen
class RowForm:
    """A form: its name, the members that a row of it `needs`, those that it `takes` besides, and what converts it to
    examples or preferences of ours. With `why_not`, rows of it are refused, for this reason."""

    name: str
    needs: frozenset[str]
    convert: Callable[[Row], dict[str, Any]] = as_it_is
    takes: frozenset[str] = frozenset()
    why_not: str = ""

    @property
    def ours(self) -> bool:
        """Whether rows of it are as training reads them."""
        return self.convert is as_it_is and not self.why_not

    def read(self, row: Row) -> dict[str, Any]:
        """Return the row in our form, with the members that are no part of its own."""
        if self.why_not:
            raise InvalidInput.at(msg=f"is {self.name}: {self.why_not}")
        used = frozenset() if self.ours else self.needs | self.takes
        return {**{name: value for name, value in row.items() if name not in used}, **self.convert(row)}


def _form(name: str, needs: str, *rest: Any, **more: Any) -> RowForm:
    return RowForm(name, frozenset(needs.split()), *rest, **more)


_ALPACA = frozenset(("input", "system", "history", "text"))
_SHAREGPT = frozenset(("system",))

MESSAGES = _form("messages", "messages")
TRAJECTORY = _form("a trajectory", "messages_and_choices")
"""What a teacher has scored: it is read where it is wanted, and no other form is near to it."""
FORMS = (
    MESSAGES,
    _form("messages with chosen and rejected answers", "messages chosen rejected"),
    _form("prompt and completion", "prompt completion", prompt_completion),
    _form("Alpaca", "instruction output", alpaca, _ALPACA),
    _form("ShareGPT", "conversations", sharegpt, _SHAREGPT),
    _form("a preference with its prompt", "prompt chosen rejected", prompt_preference),
    _form("a preference of whole conversations", "chosen rejected", implicit_preference),
    _form("an Alpaca preference", "instruction chosen rejected", alpaca_preference, _ALPACA),
    _form("a ShareGPT preference", "conversations chosen rejected", sharegpt_preference, _SHAREGPT),
    _form("a preference for fine-tuning services", "input preferred_output non_preferred_output", openai_preference),
    _form(
        "an unpaired preference",
        "prompt completion label",
        why_not="it is not known which answer a rejected one loses to; pair it, or train on the accepted ones by SFT",
    ),
    _form(
        "plain text",
        "text",
        why_not="it is not known what of it is the answer; give prompt and completion, or messages",
    ),
    _form("tokens", "input_ids", why_not="training reads texts, and makes the tokens itself; give messages"),
)
"""Every form that is known."""

_MEANT = {
    "prompt": ("question", "query", "input", "user", "human", "context", "problem"),
    "completion": ("answer", "response", "output", "assistant", "reply", "solution", "target"),
    "chosen": ("accepted", "preferred", "winner", "positive", "better"),
    "rejected": ("dispreferred", "loser", "negative", "worse"),
    "messages": ("conversation", "dialog", "dialogue", "chat", "turns", "message"),
}
_WORDS = {other: name for name, others in _MEANT.items() for other in others}


def members_of(row: Row) -> set[str]:
    """Return the names of the members that are not null."""
    return {name for name, value in row.items() if value is not None}


def form_of(row: Row) -> RowForm | None:
    """Return the form of a row; None if none fits. Raises `InvalidInput` if several do."""
    has = members_of(row)
    if TRAJECTORY.needs <= has:
        return TRAJECTORY
    fitting = [one for one in FORMS if one.needs <= has]
    found = [one for one in fitting if not any(one.needs < other.needs for other in fitting)]
    if len(found) > 1:
        found = [one for one in found if one.needs != {"text"}] or found
    if len(found) > 1:
        names = " and as ".join(f"{one.name} ({_listed(one.needs)})" for one in found)
        raise InvalidInput.at(msg=f"can be read as {names}; keep the members of one of them")
    return found[0] if found else None


def nearest_form(row: Row) -> str:
    """Return which form a row is nearest to, and how it becomes one; "" if it is near none."""
    has = members_of(row)
    plain = {name: name.strip().casefold() for name in has}
    meant = {name: _WORDS.get(plain[name], plain[name]) for name in has}
    readable = [one for one in FORMS if not one.why_not]
    near = max(readable, key=lambda one: len(one.needs & set(meant.values())) / len(one.needs))
    if not near.needs & set(meant.values()):
        return ""
    others = [(name, word) for name, word in sorted(meant.items()) if name != word and word in near.needs]
    renamed = [f"{name if name == name.strip() else repr(name)} to {word}" for name, word in others]
    missing = near.needs - set(meant.values())
    how = [f"rename {_listed(renamed)}"] if renamed else []
    how += [f"add {_listed(missing)}"] if missing else []
    return f"is in no form that is read; the nearest is {near.name}: {' and '.join(how)}"


KNOWN = "; ".join(one.name for one in FORMS if not one.why_not)


def _listed(names: Collection[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}" if others else last
