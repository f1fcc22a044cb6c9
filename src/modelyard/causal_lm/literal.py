"""Text that only looks like a special token stays text: marks of the template come from the template alone."""

import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

# Noncharacters: no text has a use for them, and every tokenizer takes them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_HIDDEN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class LiteralText:
    """Keeps special tokens apart from text that only looks like one: it is hidden while the template is rendered, and
    then encoded as ordinary text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts = [_OPEN, *(added.content for added in tokenizer.added_tokens_decoder.values() if added.special)]
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True

    def hidden(self, value: Any) -> Any:
        """A JSON value in whose texts no special token is left."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{_OPEN}{self._texts.index(found[0])}{_CLOSE}", value)
        if isinstance(value, dict):
            return {self.hidden(key): self.hidden(one) for key, one in value.items()}
        return [self.hidden(one) for one in value] if isinstance(value, list) else value

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text in which something may be hidden."""
        return [token for _, encoded in self._pieces(text) for token in encoded.ids]

    def placed(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Its tokens, and where each stands in the text (first character, and the one behind the last)."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for found, encoded in self._pieces(text):
            start, stop = found
            hidden = text[start] == _OPEN and text[stop - 1] == _CLOSE
            ids += encoded.ids
            spans += [found if hidden else (start + first, start + last) for first, last in encoded.offsets]
        return ids, spans

    def _pieces(self, text: str) -> Iterator[tuple[tuple[int, int], Any]]:
        """Where each piece of a text stands, and its encoding: that of what is hidden, or of what stands between."""
        start = 0
        for hidden in _HIDDEN.finditer(text):
            if hidden.start() > start:
                yield (start, hidden.start()), self._encoded(text[start : hidden.start()])
            yield hidden.span(), self._plain.encode(self._texts[int(hidden[1])], add_special_tokens=False)
            start = hidden.end()
        if start < len(text):
            yield (start, len(text)), self._encoded(text[start:])

    def _encoded(self, text: str) -> Any:
        return self._tokenizer(text, add_special_tokens=False).encodings[0]
