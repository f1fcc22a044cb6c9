"""The usage of a request, reported with its deltas if tokens of its prompt were not read again."""

import attrs

from modelyard.domain.completion import Delta, Usage
from modelyard.parts.torch.serving.sequence import Sequence


@attrs.define
class UsageReport:
    """Counts the deltas of all choices of a request; `first` is the sequence of its first choice."""

    first: Sequence
    produced: int = 0
    reasoning: int = 0

    def on(self, delta: Delta) -> Delta:
        """Return the delta with what has been counted up to it; the delta itself if all of the prompt was read."""
        self.produced += delta.tokens
        if delta.reasoning and not (delta.text or delta.tool_call):
            self.reasoning += delta.tokens
        cached = self.first.reused
        if not cached:
            return delta
        prompt = len(self.first.prompt)
        usage = Usage(prompt, self.produced, min(cached, prompt), reasoning_tokens=self.reasoning)
        return attrs.evolve(delta, usage=usage)
