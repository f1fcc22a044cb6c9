"""A model whose tokens are bytes, which notes what it sampled, and programs that ask it in three formats."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import attrs

from http_client import Client
from modelyard.backends.entries import entry_for
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import (
    SAMPLING_PARAMETERS,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from modelyard.domain.training import History, SampledChoice
from modelyard.parts.episodes.handle import EpisodeGroupHandle
from modelyard.parts.episodes.tree import TreeTurn
from modelyard.platform.platform import Platform
from modelyard.protocols import Capabilities, ServedModel

ROLES = {Role.SYSTEM: 300, Role.DEVELOPER: 300, Role.USER: 301, Role.ASSISTANT: 302, Role.TOOL: 303}
END, THINK, CALL, FIRST_COUNT = 310, 311, 312, 400
ABLE = Capabilities(
    parameters=frozenset(SAMPLING_PARAMETERS),
    logprobs=True,
    token_ids=True,
    tools=True,
    trainable=True,
    reasoning=True,
    strict_conversations=True,
)
WORDS = ("refund", "parcel", "naïve", "  spaced", "ok.", "日本", "")


@attrs.frozen
class Sampled:
    """What was sampled, after which tokens."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@attrs.frozen
class Template:
    """How a chat template writes a conversation.

    `thinks` is whose thoughts it keeps: those of "all" answers, of "none", or of those after the last message of the
    user. `opens` is whether a prompt ends in the mark of a thought, `rewrites` whether calls are written as JSON of
    their arguments, `trims` whether texts lose white space around them, `counts` whether it begins with the number of
    messages, and `after` what it writes after an answer.
    """

    thinks: str = "all"
    opens: bool = False
    rewrites: bool = False
    trims: bool = False
    counts: bool = False
    after: tuple[int, ...] = ()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any]) -> tuple[int, ...]:
        """The tokens of a conversation, up to where the answer begins."""
        counted = [FIRST_COUNT + len(messages)] if self.counts else []
        offered = [300, *" ".join(tool.name for tool in tools).encode(), END] if tools else []
        asked = max((at for at, one in enumerate(messages) if one.role is Role.USER), default=0)
        turns = [
            token
            for at, one in enumerate(messages)
            for token in (ROLES[one.role], *self._message(one, at > asked), END, *self.after)
        ]
        return (*counted, *offered, *turns, ROLES[Role.ASSISTANT], *([THINK] if self.opens else []))

    def answer(self, message: Message) -> tuple[int, ...]:
        """The tokens of an answer, as they are sampled."""
        written = [*_thought(message, self.opens), *message.text.encode(), *_calls(message, str)]
        return (*written[1 if self.opens else 0 :], END)

    def _message(self, message: Message, is_late: bool) -> list[int]:
        thinks = self.thinks == "all" or (self.thinks == "last" and is_late)
        thought = _thought(message, False) if thinks else []
        text = message.text.strip() if self.trims else message.text
        return [*thought, *text.encode(), *_calls(message, _json if self.rewrites else str)]


def _thought(message: Message, always: bool) -> list[int]:
    return [THINK, *(message.reasoning or "").encode(), THINK] if message.reasoning or always else []


def _calls(message: Message, write: Callable[[str], str]) -> list[int]:
    return [byte for call in message.tool_calls for byte in (CALL, *f"{call.name} {write(call.arguments)}".encode())]


def _json(text: str) -> str:
    return json.dumps(json.loads(text))


TEMPLATES = {
    "keeps": Template(),
    "drops": Template("none"),
    "last": Template("last", after=(10,)),
    "opens": Template(opens=True),
    "rewrites": Template("last", rewrites=True, after=(10,)),
    "trims": Template("none", trims=True),
    "counts": Template(counts=True),
    "all": Template("none", opens=True, rewrites=True, trims=True, counts=True, after=(10, 10)),
}


class NotingModel:
    """Answers at random by the seed, and notes it. Each of its models has one of the templates."""

    blocking = False

    def __init__(self) -> None:
        self.sampled: list[Sampled] = []

    def entries(self) -> Sequence[CatalogueEntry]:
        return self._entries

    _entries = tuple(entry_for(name, ABLE, Pricing(), 1_000_000) for name in TEMPLATES)

    def capabilities(self, model: str) -> Capabilities:
        return ABLE

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        return len(TEMPLATES[model.base_model].prompt(request.messages, request.tools))

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        random = Random(request.sampling.seed)
        template = TEMPLATES[model.base_model]
        prompt = template.prompt(request.messages, request.tools)
        message, reason = _drawn(random, request)
        ids = template.answer(message)
        logprobs = tuple(-random.random() * 4 for _ in ids)
        self.sampled.append(Sampled(prompt, ids, logprobs))
        entries = tuple(_entry(id_, logprob) for id_, logprob in zip(ids, logprobs, strict=True))
        calls = message.tool_calls
        yield Delta(text=message.text, reasoning=message.reasoning or "", prompt_token_ids=prompt)
        for at, call in enumerate(calls):
            yield Delta(tool_call=ToolCallDelta(at, call.id, call.name, call.arguments))
        yield Delta(tokens=len(ids), logprobs=entries, token_ids=ids, finish_reason=reason)


def _drawn(random: Random, request: CompletionRequest) -> tuple[Message, FinishReason]:
    thought = random.choice(("", "", "let me see")) or None
    text = " ".join(random.choices(WORDS, k=random.randrange(1, 4)))
    text = text if text.strip() else "ok"
    if request.tools and random.random() < 0.6:
        arguments = random.choice(('{"a":1,  "b": [2]}', '{"b":2,"a":"x"}', "{}", '{ "a" : 0.5 }'))
        called = [ToolCall(f"call_{random.randrange(10**9)}", request.tools[0].name, arguments)]
        return Message(Role.ASSISTANT, random.choice((None, text)), None, tuple(called), None, thought), (
            FinishReason.TOOL_CALLS
        )
    return Message(Role.ASSISTANT, text or "ok", reasoning=thought), FinishReason.STOP


def _entry(id_: int, logprob: float) -> TokenLogprob:
    return TokenLogprob(
        bytes([id_]).decode(errors="replace") if id_ < 256 else "", logprob, (id_,) if id_ < 256 else (), (), id_
    )


# ---- programs, each of one format ------------------------------------------------------------------------------------


@attrs.define
class Program:
    """A conversation in the format of an API. `told` is its history as this API has it."""

    client: Client
    key: str
    streams: bool
    tools: bool
    told: list[Any] = attrs.field(factory=list)
    thoughts: bool = False

    def copy(self) -> "Program":
        """The same conversation again, for another to go on with."""
        return attrs.evolve(self, told=json.loads(json.dumps(self.told)))

    def ask(self, seed: int) -> list[str]:
        """Ask, note the answer, and return the ids of the calls that it makes."""
        body = {**self.body(), "seed": seed} if self.takes_seed else self.body()
        answer = self.client.send("POST", self.path, {**body, "stream": self.streams}, key=self.key, check=False)
        assert answer.status == 200, answer.raw
        said = self.read(answer.events if self.streams else answer.json)
        self.told += said
        return self.calls(said)

    path = ""
    takes_seed = False

    def body(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def user(self, text: str) -> None:
        self.told.append({"role": "user", "content": text})

    def result(self, call: str, text: str) -> None:
        raise NotImplementedError

    def read(self, answer: Any) -> list[Any]:
        raise NotImplementedError

    def calls(self, said: list[Any]) -> list[str]:
        raise NotImplementedError


SCHEMA = {"type": "object", "properties": {}}


class ChatProgram(Program):
    """Chat completions."""

    path, takes_seed = "/inference/v1/chat/completions", True

    def body(self) -> Mapping[str, Any]:
        tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
        return {"model": "gpt-4o", "messages": self.told, **({"tools": tools} if self.tools else {})}

    def result(self, call: str, text: str) -> None:
        self.told.append({"role": "tool", "tool_call_id": call, "content": text})

    def read(self, answer: Any) -> list[Any]:
        message = self._assembled(answer) if self.streams else answer["choices"][0]["message"]
        assert "logprobs" not in str(answer).replace('"logprobs": None', "").replace("'logprobs': None", "")
        kept = {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None}
        if self.thoughts and message.get("reasoning_content"):
            kept["reasoning_content"] = message["reasoning_content"]
        return [{"content": None, **kept}]

    def _assembled(self, events: list[Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_content": ""}
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            for choice in [] if isinstance(event, str) else event["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    message["content"] = (message["content"] or "") + delta["content"]
                message["reasoning_content"] += delta.get("reasoning_content") or ""
                for call in delta.get("tool_calls") or ():
                    found = calls.setdefault(
                        call["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    found["id"] = call.get("id") or found.get("id")
                    for name in ("name", "arguments"):
                        found["function"][name] += call["function"].get(name) or ""
        return {**message, **({"tool_calls": list(calls.values())} if calls else {})}

    def calls(self, said: list[Any]) -> list[str]:
        return [call["id"] for call in said[0].get("tool_calls") or ()]


class ResponsesProgram(Program):
    """Responses, whose history the program keeps."""

    path = "/v1/responses"

    def body(self) -> Mapping[str, Any]:
        tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
        return {"model": "gpt-4o", "input": self.told, "store": False, **({"tools": tools} if self.tools else {})}

    def result(self, call: str, text: str) -> None:
        self.told.append({"type": "function_call_output", "call_id": call, "output": text})

    def read(self, answer: Any) -> list[Any]:
        done = answer[-1]["response"] if self.streams else answer
        for item in done["output"]:
            for part in item.get("content") or ():
                assert not part.get("logprobs")
        return [item for item in done["output"] if item["type"] != "reasoning"]

    def calls(self, said: list[Any]) -> list[str]:
        return [item["call_id"] for item in said if item["type"] == "function_call"]


class MessagesProgram(Program):
    """The messages format, in which the arguments of a call are read, and written anew."""

    path = "/v1/messages"

    def body(self) -> Mapping[str, Any]:
        tools = [{"name": "look", "input_schema": SCHEMA}]
        return {
            "model": "claude-opus",
            "max_tokens": 500,
            "messages": self.told,
            **({"tools": tools} if self.tools else {}),
        }

    def result(self, call: str, text: str) -> None:
        self.told.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]})

    def read(self, answer: Any) -> list[Any]:
        blocks = self._assembled(answer) if self.streams else answer["content"]
        kept = [block for block in blocks if block["type"] in ("text", "tool_use")]
        return [{"role": "assistant", "content": kept}]

    def _assembled(self, events: list[Any]) -> list[Any]:
        blocks: list[Any] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "text_delta":
                    blocks[-1]["text"] += delta["text"]
                elif delta["type"] == "input_json_delta":
                    blocks[-1]["json"] += delta["partial_json"]
        for block in blocks:
            text = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(text or "{}")
        return blocks

    def calls(self, said: list[Any]) -> list[str]:
        return [block["id"] for block in said[0]["content"] if block["type"] == "tool_use"]


PROGRAMS = (ChatProgram, ResponsesProgram, MessagesProgram)


# ---- scripted episodes -----------------------------------------------------------------------------------------------


def act(program: Program, random: Random) -> None:
    """Do one thing that programs do."""
    calls = program.ask(random.randrange(4 if random.random() < 0.3 else 10**6))
    for call in calls:
        program.result(call, random.choice(("found", "", "nothing\nthere")))
    if not calls:
        program.user(random.choice(("go on", "again", "why?")))


def change(program: Program, random: Random) -> Program:
    """Return the program, or one that goes on in another way: at a fork, with a shorter history or another one."""
    kind = random.randrange(8)
    other = program.copy()
    if kind == 0:
        return other
    starts = [at for at, one in enumerate(other.told) if one.get("role") == "user" and type(one["content"]) is str]
    if kind in (1, 4) and len(starts) > 2:
        other.told[: starts[-1]] = [{"role": "user", "content": "in short: it was asked"}]
        return other
    if kind == 2 and starts:
        other.told[starts[0]]["content"] = "another question"
        return other
    if kind == 3 and len(starts) > 1:
        del other.told[starts[-1] :]
        other.user("rather this")
        return other
    return program


def play(platform: Platform, client: Client, base: str, seed: int) -> EpisodeGroupHandle:
    """Play an episode, and return its group."""
    random = Random(seed)
    with platform.episodes.group("scripted", model=f"desk/{base}", size=1) as group:
        episode = group[0]
        programs = []
        for _ in range(random.randrange(1, 3)):
            kind = random.choice(PROGRAMS)
            program = kind(client, episode.key, random.random() < 0.5, random.random() < 0.6)
            program.thoughts = random.random() < 0.5
            program.user(random.choice(("hello", "where is it?")))
            programs.append(program)
        for _ in range(random.randrange(1, 10)):
            program = random.choice(programs)
            if (next_one := change(program, random)) is not program:
                programs.append(next_one)
            if random.random() < 0.15:
                random_state = random.getstate()
                program.copy().ask(7)  # a request that is sent again, as after a lost answer
                random.setstate(random_state)
            act(next_one, random)
        episode.reward(1.0)
    return group


class Differs(AssertionError):
    """What is kept or trained is not what was sampled: so many tokens `differ`, or are trained and were `unsampled`."""

    def __init__(self, what: str, differ: int, unsampled: int) -> None:
        super().__init__(f"{what}: {differ} tokens differ, {unsampled} are trained and were not sampled")
        self.differ, self.unsampled = differ, unsampled


def trained_of(history: History) -> list[Sampled]:
    """What a history trains."""
    return [
        Sampled(one.prompt_token_ids, one.token_ids, tuple(entry.logprob for entry in one.logprobs))
        for one in history.items
        if isinstance(one, SampledChoice) and one.logprobs is not None
    ]


def check_history(history: History, template: Template) -> None:
    """Check that each prompt that is trained on is what the template writes, and begins with all tokens before it."""
    known: tuple[int, ...] = ()
    before: list[Any] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else None
        if choice is not None and choice.logprobs is not None:
            prompt = choice.prompt_token_ids
            if prompt != template.prompt(before, history.tools) or prompt[: len(known)] != known:
                raise Differs("a prompt", len(prompt), 0)
            known = (*prompt, *choice.token_ids)
        before.append(item if choice is None else choice.message)


def check_episode(group: EpisodeGroupHandle, model: NotingModel, base: str) -> list[TreeTurn]:
    """Return the turns of a group's only episode: all that was sampled, of which each token is trained once at most.
    Raises `Differs`."""
    (trajectory,) = group.trajectories().trajectories
    turns, sampled = group[0].turns(), Counter(model.sampled)
    kept = Counter(Sampled(one.prompt_ids, one.ids, tuple(e.logprob for e in one.logprobs or ())) for one in turns)
    if kept != sampled:
        raise Differs("what is kept", max(_tokens(kept - sampled), _tokens(sampled - kept)), 0)
    trained = Counter(one for history in trajectory.histories for one in trained_of(history))
    if not trained <= sampled:
        raise Differs("what is trained", 0, _tokens(trained - sampled))
    if trained.total() != sum(not one.untrained for one in turns):
        raise Differs("what is trained is not what the turns say", _tokens(sampled - trained), 0)
    for history in trajectory.histories:
        check_history(history, TEMPLATES[base])
    return turns


def _tokens(counted: "Counter[Sampled]") -> int:
    return sum(len(one.ids) * number for one, number in counted.items())
