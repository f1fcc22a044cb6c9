"""An answer in a dialect: the chunks of a stream, or one document, as bytes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason, ToolCall, Usage
from modelyard.parts.upstream.odd_server.answer import OddAnswer
from modelyard.parts.upstream.odd_server.rules import CallId, CallIndex, Frame, Json, PieceKind, Rules, UsageAt

_FILTERED = {"hate": {"filtered": False, "severity": "safe"}}


@attrs.frozen
class AnswerText:
    """Writes one answer. A whole one is one document, whatever `frame` says."""

    answer: OddAnswer
    rules: Rules
    frame: Frame

    def whole(self) -> bytes:
        """Return the answer as a document."""
        choice: Json = {"index": 0, "message": self._message(), "finish_reason": self._reason()}
        body = {"id": "odd-1", "object": "chat.completion", "created": 1, "model": "odd", "choices": [choice]}
        at = self.rules.usage_at
        if at is not UsageAt.NOWHERE:
            inside = self._placed({}, self._usage(self.answer.usage))
            (choice if at is UsageAt.CHOICE else body).update(inside)
        return self.frame.begin + self._text(self.rules.enveloped(body))

    def stream(self) -> bytes:
        """Return the answer as a stream of events."""
        frame, written = self.frame, []
        for at, chunk in enumerate(self._chunks()):
            text = self._text(self.rules.enveloped(chunk))
            written.append(frame.prefix + (json.dumps(text.decode()).encode() if frame.quoted else text) + b"\n\n")
            if frame.beats:
                written.append(frame.beats[at % len(frame.beats)])
        raw = b"".join([*frame.beats, *written, frame.done])
        raw = raw.rstrip(b"\n") if frame.no_last_newline else raw
        return frame.begin + raw.replace(b"\n", frame.newline)

    # ---- chunks

    def _chunks(self) -> list[Json]:
        """Return the chunks, with the usage where the dialect has it."""
        pieces = self._messages() if self.rules.pieces is PieceKind.WHOLE_MESSAGES else self._deltas()
        chunks = [self._chunk({"role": "assistant", "content": ""}), *map(self._chunk, pieces)]
        odd = self.rules.odd_chunks
        chunks = [one for at, chunk in enumerate(chunks) for one in (chunk, *odd[at : at + 1])] + [*odd[len(chunks) :]]
        last = self._chunk(self._texts() if self.rules.text_last else {}, self._reason())
        if self.rules.message_last:
            last["choices"][0].pop("delta", None)
            last["choices"][0]["message"] = self._message()
        return self._filters([*self._counted(chunks, last), *self._last_usage()])

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        choice: Json = {
            "index": 0,
            "delta" if self.rules.pieces is PieceKind.DELTAS else "message": delta,
            "finish_reason": self.rules.reason_in_each if reason is None else reason,
        }
        return {"id": "odd-1", "object": "chat.completion.chunk", "created": 1, "model": "odd", "choices": [choice]}

    def _filters(self, chunks: list[Json]) -> list[Json]:
        """Add what a filter says: before the answer, in each of its chunks, and in a choice without a delta."""
        if not self.rules.filters:
            return chunks
        for chunk in chunks:
            for choice in chunk.get("choices") or ():
                if choice:
                    choice["content_filter_results"] = _FILTERED
        before = {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0, **_FILTERED}]}
        late = {"id": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start": 0}}]}
        return [before, *chunks, late]

    # ---- usage

    def _counted(self, chunks: list[Json], last: Json) -> list[Json]:
        at, usage = self.rules.usage_at, self.answer.usage
        if at is UsageAt.EACH:
            shown = attrs.evolve(usage, completion_tokens=0, reasoning_tokens=0)
            return [*[self._placed(chunk, self._usage(shown)) for chunk in chunks], self._with_usage(last)]
        if at is UsageAt.SPLIT:
            prompt = attrs.evolve(usage, completion_tokens=0, reasoning_tokens=0)
            of_prompt, of_answer = map(self.rules.changed, _split(self.rules.usage(usage), self.rules.usage(prompt)))
            ending: list[Json] = [last, self._placed({**last, "choices": []}, of_answer)]
            return [self._placed(chunks[0], of_prompt), *chunks[1:], *ending]
        if at is UsageAt.CHOICE:
            last["choices"][0].update(self._placed({}, self._usage(usage)))
            return [*chunks, last]
        if at is UsageAt.OWN:
            return [*chunks, last, self._with_usage({**last, "choices": []})]
        return [*chunks, last if at is UsageAt.NOWHERE else self._with_usage(last)]

    def _with_usage(self, chunk: Json) -> Json:
        return self._placed(chunk, self._usage(self.answer.usage))

    def _usage(self, usage: Usage) -> Json:
        return self.rules.changed(self.rules.usage(usage))

    def _placed(self, owner: Json, counts: Json) -> Json:
        if self.rules.usage_at is UsageAt.NESTED:
            return {**owner, "x_odd": {"id": "req_1", self.rules.usage_name: counts}}
        among = self.rules.usage_at is UsageAt.MEMBERS or "timings" in counts
        return {**owner, **counts} if among else {**owner, self.rules.usage_name: counts}

    def _last_usage(self) -> list[Json]:
        given = self.rules.empty_usage_last
        return [] if given is None else [{"id": "odd-1", "choices": [], "usage": dict(given)}]

    # ---- the message

    def _message(self) -> Json:
        answer, rules = self.answer, self.rules
        message: Json = {"role": "assistant", **self._texts()}
        if answer.calls and self._is_function:
            message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
        elif answer.calls:
            message["tool_calls"] = [self._call(at, call) for at, call in enumerate(answer.calls)]
            if rules.index is not CallIndex.NUMBERED:
                message["content"] = message["content"] or None
        return message

    def _messages(self) -> Iterator[Json]:
        """Yield the message so far, again and again."""
        whole = self.answer
        answers = [
            attrs.evolve(whole, text="", reasoning=said, calls=()) for said in _so_far(whole.cut(whole.reasoning))
        ]
        answers += [attrs.evolve(whole, text=said, calls=()) for said in _so_far(whole.cut(whole.text))]
        for at, call in enumerate(whole.calls):
            said = [call.arguments] if self.rules.whole_calls else _so_far(whole.cut(call.arguments))
            begun = whole.calls[:at]
            answers += [attrs.evolve(whole, calls=(*begun, attrs.evolve(call, arguments=one))) for one in said]
        for answer in answers:
            yield attrs.evolve(self, answer=answer)._message()

    def _texts(self) -> Json:
        answer = self.answer
        texts: Json = {"content": self._content(answer.text)}
        return self._with_reasoning(texts, answer.reasoning) if answer.reasoning else texts

    def _deltas(self) -> Iterator[Json]:
        answer, repeated = self.answer, _so_far if self.rules.cumulative_text else list
        for piece in repeated(self._cut(answer.reasoning)):
            yield self._with_reasoning({}, piece)
        for piece in repeated(self._cut(answer.text)):
            yield {"content": self._content(piece)}
        for at, call in enumerate(answer.calls):
            for written in self._call_pieces(at, call):
                yield {"function_call": written["function"]} if self._is_function else {"tool_calls": [written]}

    def _cut(self, text: str) -> list[str]:
        return self.answer.cut(_halved(text) if self.rules.halves else text)

    @property
    def _is_function(self) -> bool:
        return self.rules.one_function and len(self.answer.calls) == 1

    def _content(self, text: str) -> Any:
        return [self.rules.part(text)] if self.rules.part is not None and text else text

    def _with_reasoning(self, message: Json, text: str) -> Json:
        if self.rules.reasoning_in_parts:
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
            return {**message, "content": [thought, *(message.get("content") or ())]}
        if self.rules.reasoning == "reasoning_details":
            return {**message, self.rules.reasoning: [{"type": "reasoning.text", "text": text, "index": 0}]}
        return {**message, self.rules.reasoning: text}

    def _call(self, at: int, call: ToolCall) -> Json:
        given = json.loads(call.arguments) if self.rules.objects else call.arguments
        return self._numbered(at, call, True, {"name": call.name, "arguments": given})

    def _call_pieces(self, at: int, call: ToolCall) -> Iterator[Json]:
        """Yield the pieces of a call: its name, whole or in two pieces, and then its arguments."""
        if self.rules.whole_calls:
            yield self._call(at, call)
            return
        half = len(call.name) // 2 if self.rules.cut_names else 0
        names = [call.name[:half], call.name[half:]] if half else [call.name]
        for number, name in enumerate(names):
            yield self._numbered(at, call, number == 0, {"name": name, "arguments": ""})
        for piece in self._cut_arguments(call.arguments):
            again = {"name": call.name} if self.rules.repeated_names and not half else {}
            yield self._numbered(at, call, False, {**again, "arguments": piece})

    def _cut_arguments(self, arguments: str) -> list[str]:
        """Return the pieces of arguments, each of which has those before it if they are cumulative."""
        pieces = self._cut(arguments)
        return _so_far(pieces) if self.rules.cumulative_arguments else pieces

    def _numbered(self, at: int, call: ToolCall, first: bool, function: Json) -> Json:
        index: dict[CallIndex, Json] = {
            CallIndex.NUMBERED: {"index": at},
            CallIndex.NULL: {"index": None},
            CallIndex.ZERO: {"index": 0},
        }
        has_id = self.rules.id is CallId.EACH or (first and self.rules.id is CallId.FIRST)
        id_ = {"id": call.id, "type": "function"} if has_id else {}
        return {**index.get(self.rules.index, {}), **id_, "function": function}

    # ---- text

    def _reason(self) -> str:
        reason = self.answer.finish
        if reason is FinishReason.TOOL_CALLS and self._is_function:
            return "function_call"
        return self.rules.finish.get(reason, str(reason))

    def _text(self, value: Mapping[str, Any]) -> bytes:
        """Return the JSON of a value, in which characters beyond the first plane are escaped as two halves."""
        text = json.dumps(value, ensure_ascii=self.rules.halves, separators=(",", ":"))
        if self.rules.junk:
            text = text[:-1] + ("," if value else "") + self.rules.junk + "}"
        return text.encode()


def _so_far(pieces: Sequence[str]) -> list[str]:
    """Return each piece after those before it."""
    return list(accumulate(pieces))


def _halved(text: str) -> str:
    """Return the text with the two halves of each character beyond the first plane in its place."""
    raw = text.encode("utf-16-le")
    return "".join([raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)])


def _split(whole: Mapping[str, Any], prompt: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return the counts of the prompt, which are those that are not 0 in `prompt`, and the others, with the total."""
    first: Json = {}
    rest: Json = {}
    for name, value in whole.items():
        if type(value) is dict:
            first[name], rest[name] = _split(value, prompt[name])
        else:
            (first if prompt[name] and "otal" not in name else rest)[name] = value
    return first, rest
