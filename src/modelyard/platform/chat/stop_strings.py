"""Stop strings: the buffer that holds text back while it may become one."""

from collections.abc import Sequence

import attrs

from modelyard.domain.completion import Delta, FinishReason, token_bytes, trimmed


class StopStringBuffer:
    """Holds deltas back while their text may be the beginning of a stop string, and cuts them where one is complete.

    The stop string that is complete first counts, so it does not matter how the text is cut into deltas.
    Log-probabilities stay with the text: an entry is not shown before all text that its bytes belong to.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Delta] = []
        self._text = ""

    def take(self, delta: Delta) -> Sequence[Delta]:
        """Return what may be shown now. When a stop string was found, the last delta names it, with its reason."""
        self._held.append(delta)
        self._text += delta.text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            end, at = min(found)
            return self._cut(at, self._text[at:end])
        return self._certain() if delta.finish_reason is None else self.release()

    def release(self) -> Sequence[Delta]:
        """Return everything that is held."""
        held, self._held, self._text = self._held, [], ""
        return held

    def _certain(self) -> Sequence[Delta]:
        """Return the deltas before anything that may still become a stop string."""
        safe = len(self._text) - _count_begun(self._text, self._stops)
        count = chars = shown_chars = lead = 0
        for at, delta in enumerate(self._held, 1):
            chars += len(delta.text)
            if chars > safe:
                break
            lead += _lead_of(delta)
            if lead >= 0:
                count, shown_chars, lead = at, chars, 0
        shown, self._held = self._held[:count], self._held[count:]
        self._text = self._text[shown_chars:]
        return shown

    def _cut(self, at: int, stop: str) -> Sequence[Delta]:
        """Return everything that is held, without the text from `at` on, where the stop string is."""
        chars, size = at, len(self._text[:at].encode())
        shown = []
        for delta in self.release():
            entries = [] if delta.tool_call is not None or delta.reasoning else trimmed(delta.logprobs, size)
            size -= sum(len(token_bytes(entry)) for entry in entries)
            shown.append(
                attrs.evolve(
                    delta,
                    text=delta.text[: max(chars, 0)],
                    logprobs=tuple(entries) or delta.logprobs,
                    tool_call=delta.tool_call if chars > 0 else None,
                    finish_reason=None,
                    stop_string=None,
                )
            )
            chars -= len(delta.text)
        shown[-1] = attrs.evolve(shown[-1], finish_reason=FinishReason.STOP, stop_string=stop)
        return shown


def _count_begun(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of the text may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def _lead_of(delta: Delta) -> int:
    """Return how many more bytes the text has than the entries. Those of a tool call or of reasoning belong to none."""
    if not delta.logprobs or delta.tool_call is not None or delta.reasoning:
        return 0
    return len(delta.text.encode()) - sum(len(token_bytes(entry)) for entry in delta.logprobs)
