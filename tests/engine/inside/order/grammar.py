"""A grammar and its backend behind vLLM's own interfaces: tiny, and exact about every token.

The real `StructuredOutputManager` uses them as it uses xgrammar's.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine.inside.order.tokens import END, VOCABULARY, Answer, allowed

WORDS = VOCABULARY // 32
Mask = tuple[int, ...] | None


class FakeGrammar:
    """Stands in for vLLM's `StructuredOutputGrammar`.

    Attributes:
        accepted: the tokens that it has taken.
    """

    def __init__(self, answer: Answer) -> None:
        self.accepted: list[int] = []
        self._answer = answer

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Take tokens; stop at the first that is not allowed."""
        for token in tokens:
            if self.is_terminated():
                return True
            if token not in self._allowed(self.accepted):
                return False
            self.accepted.append(token)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the longest prefix that would be taken."""
        state = list(self.accepted)
        for count, token in enumerate(tokens):
            if (state and state[-1] == END) or token not in self._allowed(state):
                return tokens[:count]
            state.append(token)
        return tokens

    def rollback(self, num_tokens: int) -> None:
        """Give back the newest tokens."""
        del self.accepted[len(self.accepted) - num_tokens :]

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the mask of the present state."""
        row = bitmask[batch_index]
        row.fill_(0)
        for word, bits in _words(self._allowed(self.accepted)).items():
            row[word] = bits

    def is_terminated(self) -> bool:
        """Whether the end token was taken."""
        return bool(self.accepted) and self.accepted[-1] == END

    def reset(self) -> None:
        """Forget all tokens."""
        self.accepted.clear()

    def _allowed(self, state: Sequence[int]) -> tuple[int, ...]:
        last = state[-1] if state else self._answer.prompt_tokens[-1]
        return allowed(self._answer, len(state), last)


class FakeBackend:
    """The part of vLLM's `StructuredOutputBackend` that masks need."""

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        """Return masks that allow everything: a row that nobody writes must not look like a mask."""
        return torch.full((max_num_seqs, WORDS), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Nothing to free."""


def tokens_of(row: Sequence[int]) -> Mask:
    """Return the tokens that a mask row allows, `None` for a row that allows everything."""
    if all(word == -1 for word in row):
        return None
    return tuple(
        32 * number + bit for number, word in enumerate(row) for bit in range(32) if int(word) >> bit & 1
    )


def _words(tokens: Sequence[int]) -> dict[int, int]:
    words: dict[int, int] = {}
    for token in tokens:
        words[token // 32] = words.get(token // 32, 0) | 1 << token % 32
    return {word: bits - (1 << 32) if bits >= 1 << 31 else bits for word, bits in words.items()}
