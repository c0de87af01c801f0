"""The fake model: which token follows which, as a function of the request and its history. Pure.

Every token says where it belongs. A token of a structured request carries the state of its grammar, so a
mask of another state shows as a token of another class. Which token of the class it is depends on the token
before it, so a stage that computed with a wrong input token shows as another text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

END = 2
"""Ends every answer."""

CLASSES = 8
CLASS_SIZE = 4
STRUCTURED = range(32, 32 + CLASSES * CLASS_SIZE)
PLAIN = range(64, 96)
PROMPT = range(96, 128)
VOCABULARY = 128
LOST = 1
"""Input token of a stage that was not told the right one."""


@dataclass(frozen=True)
class Answer:
    """What one request is going to say.

    Attributes:
        seed: chooses among the tokens that are possible.
        prompt: number of prompt tokens.
        length: structured: tokens of the answer before its end token; 0 for a plain request.
        limit: most tokens that the request may have (`max_tokens`).
    """

    seed: int
    prompt: int
    length: int
    limit: int

    @property
    def structured(self) -> bool:
        """Whether the request has a grammar."""
        return self.length > 0

    @property
    def prompt_tokens(self) -> list[int]:
        """Return the prompt; two requests share no prefix."""
        return [PROMPT[mix(self.seed, position) % len(PROMPT)] for position in range(self.prompt)]


def mix(*values: int) -> int:
    """Return a number that depends on all values, the same in every process."""
    state = 0x9E3779B9
    for value in values:
        state = ((state ^ value) * 0x01000193 + 0x7F4A7C15) & 0xFFFFFFFF
        state ^= state >> 13
    return state


def allowed(answer: Answer, position: int, last: int) -> tuple[int, ...]:
    """Return what the grammar allows after `position` accepted tokens, of which `last` is the newest."""
    if position >= answer.length:
        return (END,)
    first = STRUCTURED[position % CLASSES * CLASS_SIZE]
    left_out = mix(answer.seed, position, last) % CLASS_SIZE
    return tuple(first + offset for offset in range(CLASS_SIZE) if offset != left_out)


def sample(answer: Answer, position: int, last: int, possible: Sequence[int] | None) -> int:
    """Return the token at `position` of the answer.

    Args:
        answer: whose answer.
        position: number of output tokens before it.
        last: the token before it, as the stage that computes it knows it.
        possible: what the mask leaves; `None` without a mask.
    """
    choice = mix(answer.seed, position, last, 7)
    if possible is None:
        return END if choice % 17 == 0 else PLAIN[choice % len(PLAIN)]
    return possible[choice % len(possible)] if possible else LOST


def whole_answer(answer: Answer) -> list[int]:
    """Return what synchronous scheduling gives: every token sampled with all earlier ones known."""
    said: list[int] = []
    last = answer.prompt_tokens[-1]
    while len(said) < answer.limit and last != END:
        last = sample(answer, len(said), last, _mask(answer, len(said), last))
        said.append(last)
    return said


def propose(answer: Answer, said: Sequence[int], count: int) -> list[int]:
    """Return `count` draft tokens: right ones, legal but wrong ones, and some that the grammar forbids."""
    last = said[-1]
    drafts: list[int] = []
    for position in range(len(said), len(said) + count):
        possible = _mask(answer, position, last)
        last = sample(answer, position, last, possible)
        luck = mix(answer.seed, position, 11) % 8
        if luck == 0:
            last = STRUCTURED[mix(answer.seed, position, 13) % len(STRUCTURED)]
        elif luck == 1 and possible is not None:
            last = possible[mix(answer.seed, position, 17) % len(possible)]
        drafts.append(last)
    return drafts


def _mask(answer: Answer, position: int, last: int) -> tuple[int, ...] | None:
    return allowed(answer, position, last) if answer.structured else None
