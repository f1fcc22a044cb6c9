"""Rows of public forms as examples and preferences of ours: plain data, which the format of training data then checks.
Whatever is unclear is refused at its member."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.errors import InvalidInput

Row = Mapping[str, Any]
Said = list[dict[str, Any]]

_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant"} | {
    "assistant": "assistant"
}
_OF_TOOLS = frozenset(("function_call", "observation", "function_response", "tool", "tool_call", "tool_response"))
_TURN = re.compile(r"\n\n(Human|Assistant):")


def as_it_is(row: Row) -> dict[str, Any]:
    return dict(row)


# ---- examples ----------------------------------------------------------------------------------------------------


def prompt_completion(row: Row) -> dict[str, Any]:
    """Only the completion is trained: answers in the prompt are read."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) is not isinstance(completion, str):
        raise InvalidInput.at("completion", msg="must be of the kind of prompt: both strings, or both lists")
    if isinstance(prompt, str):
        return {"messages": [_said("user", prompt), _said("assistant", completion)]}
    asked = [_untrained(message) for message in _messages(prompt, "prompt")]
    return {"messages": [*asked, *_messages(completion, "completion")]}


def _untrained(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "weight": 0} if message.get("role") == "assistant" else message


def alpaca(row: Row) -> dict[str, Any]:
    return {"messages": [*_alpaca_prompt(row), _said("assistant", _text(row, "output"))]}


def _alpaca_prompt(row: Row) -> Said:
    system = [_said("system", _text(row, "system"))] if row.get("system") else []
    said = [one for at, pair in enumerate(row.get("history") or ()) for one in _pair(pair, at)]
    more = _text(row, "input") if row.get("input") else ""
    instruction = _text(row, "instruction")
    return [*system, *said, _said("user", f"{instruction}\n\n{more}" if more else instruction)]


def _pair(pair: Any, at: int) -> Said:
    if not (_is_list(pair) and len(pair) == 2 and all(isinstance(one, str) for one in pair)):
        raise InvalidInput.at("history", at, msg="must be an instruction and its answer, two strings")
    return [_said("user", pair[0]), _said("assistant", pair[1])]


def sharegpt(row: Row) -> dict[str, Any]:
    return {"messages": _conversation(row)}


def _conversation(row: Row) -> Said:
    turns = row["conversations"]
    if not _is_list(turns):
        raise InvalidInput.at("conversations", msg="must be a list of turns")
    system = [_said("system", _text(row, "system"))] if row.get("system") else []
    return [*system, *(_turn(turn, "conversations", at) for at, turn in enumerate(turns))]


def _turn(turn: Any, *place: str | int) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise InvalidInput.at(*place, msg='must be an object, such as {"from": "human", "value": "hello"}')
    if "role" in turn and not turn.keys() & {"from", "value"}:
        return dict(turn)
    for name in sorted(turn.keys() - {"from", "value", "weight"}):
        raise InvalidInput.at(*place, name, msg="is not known in a turn of ShareGPT; leave it out")
    name = turn.get("from")
    if name in _OF_TOOLS:
        msg = f"is {name!r}: such calls have no ids; write the row as messages with tool_calls"
        raise InvalidInput.at(*place, "from", msg=msg)
    if not isinstance(name, str) or name not in _ROLES:
        raise InvalidInput.at(*place, "from", msg=f"must be one of {', '.join(_ROLES)}")
    if not isinstance(turn.get("value"), str):
        raise InvalidInput.at(*place, "value", msg="must be a string")
    weight = {} if turn.get("weight") is None else {"weight": turn["weight"]}
    return {**_said(_ROLES[name], turn["value"]), **weight}


# ---- preferences -------------------------------------------------------------------------------------------------


def prompt_preference(row: Row) -> dict[str, Any]:
    prompt = row["prompt"]
    asked = [_said("user", prompt)] if isinstance(prompt, str) else _messages(prompt, "prompt")
    return _preference(asked, *(_answer_after(asked, row[name], name) for name in ("chosen", "rejected")))


def _answer_after(asked: Said, answer: Any, name: str) -> Any:
    """Return one answer: a string, or the only message after the prompt, which some data sets repeat."""
    if not _is_list(answer):
        return answer
    said = _messages(answer, name)
    rest = said[len(asked) :] if said[: len(asked)] == asked else said
    if len(rest) != 1:
        raise InvalidInput.at(name, msg="must be one answer to the prompt: a string, or a list of one message")
    return rest[0]


def implicit_preference(row: Row) -> dict[str, Any]:
    if isinstance(row["chosen"], str) and isinstance(row["rejected"], str):
        chosen, rejected = (_dialogue(row[name], name) for name in ("chosen", "rejected"))
    else:
        chosen, rejected = (_messages(row[name], name) for name in ("chosen", "rejected"))
    for name, said in (("chosen", chosen), ("rejected", rejected)):
        if not said or said[-1].get("role") != "assistant":
            raise InvalidInput.at(name, msg="must end with the answer of an assistant")
    if chosen[:-1] != rejected[:-1]:
        msg = "must differ from chosen in the last answer alone, so that both answer the same prompt"
        raise InvalidInput.at("rejected", msg=msg)
    return _preference(chosen[:-1], chosen[-1], rejected[-1])


def _dialogue(text: str, name: str) -> Said:
    """Read a text in which each turn begins with "Human:" or "Assistant:" after a blank line."""
    parts = _TURN.split(text)
    if parts[0] or len(parts) == 1:
        msg = f"is required, or prompt: where the answer begins in {name} is unclear; or begin each turn of it with "
        raise InvalidInput.at("messages", msg=f'{msg}"\\n\\nHuman:" or "\\n\\nAssistant:"')
    turns = zip(parts[1::2], parts[2::2], strict=True)
    return [_said("user" if who == "Human" else "assistant", said.strip()) for who, said in turns]


def alpaca_preference(row: Row) -> dict[str, Any]:
    return _preference(_alpaca_prompt(row), row["chosen"], row["rejected"])


def sharegpt_preference(row: Row) -> dict[str, Any]:
    answers = ((row[name], name) for name in ("chosen", "rejected"))
    return _preference(_conversation(row), *(one if isinstance(one, str) else _turn(one, at) for one, at in answers))


def openai_preference(row: Row) -> dict[str, Any]:
    given = row["input"]
    if not isinstance(given, Mapping) or given.keys() - {"messages", "tools", "parallel_tool_calls"}:
        raise InvalidInput.at("input", msg="must be an object of messages, and of tools if there are any")
    asked = _messages(given.get("messages"), "input", "messages")
    names = ("preferred_output", "non_preferred_output")
    tools = {"tools": given["tools"]} if given.get("tools") else {}
    return {**_preference(asked, *(_answer_after(asked, row[name], name) for name in names)), **tools}


def _preference(asked: Said, chosen: Any, rejected: Any) -> dict[str, Any]:
    return {"messages": [_plain(one) for one in asked], "chosen": chosen, "rejected": rejected}


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "weight"}


# ---- values ------------------------------------------------------------------------------------------------------


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise InvalidInput.at(name, msg="must be a string")
    return value


def _messages(value: Any, *place: str | int) -> Said:
    if not _is_list(value) or not all(isinstance(one, Mapping) for one in value):
        raise InvalidInput.at(*place, msg="must be a list of messages")
    return [dict(one) for one in value]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
