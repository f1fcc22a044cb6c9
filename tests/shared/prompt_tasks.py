"""Tasks whose answers a model knows only if its instructions say them, and a model that reads them off the feedback."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.errors import BackendError

MODELS = ("scripted", "thinker", "fool", "judge")
FACTS = {
    "refunds": "fourteen days",
    "shipping": "two working days",
    "invoices": "the account page",
    "passwords": "the sign-in page",
    "gifts": "paper for three euros",
    "returns": "the blue label",
    "hours": "nine to five",
    "support": "the yellow button",
}
TASKS = [{"prompt": f"What about {name}?", "expected": fact} for name, fact in FACTS.items()]
MANY = [{**one, "prompt": f"{one['prompt']} I ask {at} times."} for at in range(2, 8) for one in TASKS]
"""Each of the facts asked for in several ways."""
BEGIN = "Answer the customer."


def contains(output: Any, row: Mapping[str, Any]) -> bool:
    """The reward: whether the answer has what is expected."""
    return row["expected"] in output


def answered(system: str, question: str) -> str:
    """What the model of the tasks says: a fact that its instructions have, about what the question asks."""
    about = re.findall(r"What about (\w+)", question)[0]
    found = re.search(rf"{about}: ([a-z -]+)\.", system)
    return f"It is {found[1]}." if found else "I do not know."


def reflected(prompt: str) -> str:
    """What the reflection model says: the instructions with one more fact, the first that the feedback has."""
    current = prompt.partition("```\n")[2].partition("\n```")[0]
    examples = re.findall(r"What about (\w+)\?.*?expected: ([a-z -]+)", prompt, re.DOTALL)
    new = next((f" {about}: {fact}." for about, fact in examples if f"{about}: " not in current), "")
    return f"Here they are:\n```\n{current}{new}\n```"


def script(request: Any) -> str:
    """All models, as a script of `ScriptedBackend`."""
    asked = request.messages[-1].text
    if request.model == "thinker":
        return reflected(asked)
    if request.model == "fool":
        return "```\nAnswer.\n```"
    if request.model == "judge":
        return "yes" if asked.partition(" in ")[0] in asked.partition(" in ")[2] else "no"
    if "fail" in asked:
        raise BackendError("it is down")
    said: Sequence[Any] = [one for one in request.messages if one.role == "system"]
    return answered(said[0].text if said else "", asked)


def length(output: Any, row: Mapping[str, Any]) -> float:
    """A reward that no model is asked for: how many different characters an answer has."""
    return len(set(output)) / 100
