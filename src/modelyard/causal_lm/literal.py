"""Text that only looks like a special token stays text: marks of the template come from the template alone."""

import re
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
        found: list[int] = []
        for place, piece in enumerate(_HIDDEN.split(text)):
            if place % 2:
                found += self._plain.encode(self._texts[int(piece)], add_special_tokens=False).ids
            elif piece:
                found += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        return found
