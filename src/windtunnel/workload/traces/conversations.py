"""Conversations of texts as sessions whose prompts grow: what was said so far, answers included, and the new message.

Decides how many tokens a text is and which texts are the same content. Without a tokenizer a text has 4 tokens for 3
words, where a word is what stands between white space, and a character from U+2E80 on (Chinese, Japanese, Korean) is
half a word; the result is rounded up. Equal texts are equal content, so that a system prompt that many conversations
begin with is shared. An answer is the output of its request: the next prompt holds what was really generated.
"""

from __future__ import annotations

from hashlib import blake2b

from windtunnel.workload.content import Run, output_origin

_FIRST_WIDE = "\u2e80"


def tokens_in(text: str) -> int:
    """Number of tokens of a text by the rule above; 0 for white space."""
    wide = 0 if text.isascii() else sum(character >= _FIRST_WIDE for character in text)
    return -(-(4 * len(text.split()) + 2 * wide) // 3)


class TextContent:
    """Gives out content for texts: one origin for each distinct text and length."""

    def __init__(self) -> None:
        self._origins: dict[tuple[bytes, int], int] = {}

    def runs(self, text: str, tokens: int) -> list[Run]:
        """The content of a text of so many tokens."""
        if not tokens:
            return []
        key = (blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest(), tokens)
        return [(self._origins.setdefault(key, len(self._origins)), 0, tokens)]


class Dialogue:
    """The history of one conversation while its turns are added."""

    def __init__(self, content: TextContent) -> None:
        self._content = content
        self._history: list[Run] = []

    def say(self, text: str, tokens: int) -> None:
        """Something that is in every prompt from now on."""
        self._history += self._content.runs(text, tokens)

    def prompt(self) -> list[Run]:
        """Everything so far."""
        return list(self._history)

    def answered(self, request: int, output_tokens: int) -> None:
        """Request number `request` has answered with so many tokens."""
        self._history.append((output_origin(request), 0, output_tokens))
