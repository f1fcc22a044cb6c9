"""What a server says that its answer has used, wherever it says so and under whichever names.

Each count is kept by its greatest value, as some servers send a part first and the rest later, or a last report without
counts. The docs list the servers (docs/reference/upstream-servers.md).
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from modelyard.domain.completion import Usage
from modelyard.parts.upstream.answers.values import count_of, object_of, objects_of, read_again

_NAMES = {
    "prompt": (
        "prompttokens prompttokencount prompttokenscount promptevalcount tokensevaluated nativetokensprompt "
        "numprompttokens"
    ),
    "input": "inputtokens inputtokencount",
    "completion": (
        "completiontokens completiontokencount completiontokenscount outputtokens outputtokencount "
        "candidatestokencount responsetokencount evalcount tokenspredicted nativetokenscompletion generatedtokens "
        "generatedtokencount numcompletiontokens"
    ),
    "total": "totaltokens totaltokencount totaltokenscount",
    "cached": (
        "cachedtokens numcachedtokens promptcachehittokens cachedcontenttokencount nativetokenscached "
        "cachedprompttokens cachedprompttexttokens cachedinputtokens"
    ),
    "read": "cachereadinputtokens cachereadinputtokencount",
    "written": "cachecreationinputtokens cachewriteinputtokens cachewriteinputtokencount",
    "missed": "promptcachemisstokens",
    "reasoning": "reasoningtokens reasoningtokencount nativetokensreasoning thinkingtokens",
    "thoughts": "thoughtstokencount",
    "tool_prompt": "tooluseprompttokencount",
}
"""Names by what they count, in lower case and without what joins their words: those of OpenAI, vLLM, SGLang, Mistral,
Together and Azure; of Gemini; of Ollama and llama.cpp; of OpenRouter, Anthropic, Bedrock, DeepSeek, Kimi and xAI; of
SambaNova and watsonx.
"""
_COUNTS: Mapping[str, str] = {name: count for count, names in _NAMES.items() for name in names.split()}
_BESIDE_CHOICES = frozenset({"prompt_eval_count", "tokens_evaluated", "eval_count", "tokens_predicted"})
"""Names that servers put next to the choices, without an object around them."""
_REPORTS = (
    *("usage", "usageMetadata", "usage_metadata", "token_usage", "tokenUsage", "meta_info", "billed_units"),
    "amazon-bedrock-invocationMetrics",
)

MAY_REPORT: Set[str] = frozenset({*_REPORTS, "timings", *_BESIDE_CHOICES})
"""Members of an object that counts tokens."""


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def reports_of(owner: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the reports on usage that an object has as its members."""
    if MAY_REPORT.isdisjoint(owner):
        return
    for name in _REPORTS:
        yield from objects_of(read_again(owner.get(name)))
    if timings := object_of(owner.get("timings")):  # of llama.cpp, which counts the cached part of a prompt apart
        cached = count_of(timings.get("cache_n")) or 0
        yield {
            "prompt_tokens": (count_of(timings.get("prompt_n")) or 0) + cached,
            "completion_tokens": timings.get("predicted_n"),
            "cached_tokens": cached,
        }


class Counts:
    """Counts of tokens, each the greatest that was reported."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __getitem__(self, count: str) -> int:
        return self._found.get(count, 0)

    def take(self, report: Mapping[str, Any]) -> None:
        """Take the counts of a report, with the details that it breaks them down to."""
        for name, value in report.items():
            plain = _plain(name)
            if "details" in plain:
                for details in objects_of(value):
                    self._take_details(details)
            elif plain in _COUNTS:
                self._keep(_COUNTS[plain], value)

    def _take_details(self, details: Mapping[str, Any]) -> None:
        for name, value in details.items():
            count = _COUNTS.get(_plain(name))
            if count in ("cached", "read", "reasoning", "thoughts"):
                self._keep("cached" if count == "read" else count, value)

    def _keep(self, count: str, value: Any) -> None:
        found = count_of(value)
        if found is not None:
            self._found[count] = max(found, self[count])


class UsageReader:
    """Gathers what an answer says of its usage: next to its choices, in one of them, or in an object of the server's.

    `counts` of a choice are its own, so that those of several add up.
    """

    def __init__(self) -> None:
        self._whole = Counts()
        self._choices: dict[int, Counts] = {}

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take what stands next to the choices."""
        if not _BESIDE_CHOICES.isdisjoint(chunk):
            self._whole.take({name: chunk[name] for name in _BESIDE_CHOICES.intersection(chunk)})
        for owner in (chunk, *[value for value in chunk.values() if type(value) is dict]):
            for report in reports_of(owner):
                self._whole.take(report)

    def take_choice(self, index: int, choice: Mapping[str, Any]) -> None:
        """Take what stands within a choice, or within its message."""
        for owner in (choice, object_of(choice.get("delta")), object_of(choice.get("message"))):
            for report in reports_of(owner):
                self._choices.setdefault(index, Counts()).take(report)

    @property
    def completion(self) -> int:
        """The tokens of the answer as they have been reported; 0 if they have not."""
        return self._added("completion")

    @property
    def reported(self) -> bool:
        """Whether anything has been reported."""
        return bool(self._whole) or any(self._choices.values())

    def usage(self, prompt: int, produced: int, shown: int) -> Usage:
        """Return the usage. `prompt` and `produced` are estimates of the tokens of the prompt and of the answer, for
        what was not counted, and `shown` is how many tokens of the answer have been seen one by one.
        """
        counted_prompt, counted, reasoning = self._resolved(produced)
        tokens = counted or produced
        estimated = not self.reported or (not counted_prompt and prompt > 0) or (not counted and produced > 0)
        if shown > tokens:
            tokens, estimated = shown, True
        of_prompt = counted_prompt or prompt
        cached = min(max(self._most("cached"), self._most("read")), of_prompt)
        return Usage(of_prompt, tokens, cached, estimated=estimated, reasoning_tokens=min(reasoning, tokens))

    def _resolved(self, produced: int) -> tuple[int, int, int]:
        """Return the tokens of the prompt, of the answer with its reasoning, and of the reasoning; 0 is unknown.

        Some servers count reasoning within the answer and some beside it: the total tells, or that it is more.
        """
        prompt, total, counted = self._prompt(), self._most("total"), self.completion
        reasoning, thoughts = self._added("reasoning"), self._added("thoughts")
        beside = max(reasoning, thoughts)
        if total and prompt:
            counted += beside if total >= prompt + counted + beside else 0
        elif thoughts or reasoning > counted:
            counted += beside
        if not prompt:
            return max(0, total - (counted or produced)), counted, beside
        if total > prompt + counted:  # what is missing was produced, as thoughts that are not shown
            beside += total - prompt - counted if counted else 0
            counted = total - prompt
        return prompt, counted, beside

    def _prompt(self) -> int:
        """Return the tokens of the prompt, with those that some names leave out: of the cache, and of tools' answers.

        Whether cached tokens are left out, the total tells; without one, that the server has no name for the whole
        prompt, or that they are more.
        """
        total, produced, missed = self._most("total"), self.completion, self._most("missed")
        prompt = max(self._most("prompt"), self._most("input"), missed + self._most("cached") if missed else 0)
        outside = self._most("read") + self._most("written")
        apart = total >= prompt + outside + produced if total else not self._most("prompt")
        prompt += outside if apart or outside > prompt else 0
        tools = self._most("tool_prompt")
        return prompt + (tools if not total or total >= prompt + tools + produced else 0)

    def _most(self, count: str) -> int:
        return max(self._whole[count], *(one[count] for one in self._choices.values()), 0)

    def _added(self, count: str) -> int:
        """Return a count of the answer: as it was reported for all choices, or for each of them."""
        return max(self._whole[count], sum(one[count] for one in self._choices.values()))
