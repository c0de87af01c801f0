"""May a request whose sampled token was refused be rolled back and go on? Pure.

Rolled back means: the refused token is never part of the request, every step that was scheduled on top of it
is thrown away, and the request is computed again from its last accepted token. That is right only where
nothing outside of the scheduler remembers the refused token.
"""

from dataclasses import dataclass

MAX_RECOVERIES = 3
"""A request; after that it ends with `grammar_rejected`. A grammar that refuses again and again does not
agree with its masks, and then no number of attempts helps."""

PROVEN_GRAMMARS = frozenset({"XgrammarGrammar", "GuidanceGrammar"})
"""Classes whose `reset()` gives a matcher that takes the request's tokens anew."""

BROKEN_BY_REFUSAL = frozenset({"GuidanceGrammar"})
"""Classes whose matcher is of no use any more once it was given a token that it refuses: `reset()` does not
mend llguidance 1.7, and vLLM's wrapper takes every later token for accepted. They are asked before they are
given a token (3 microseconds)."""


@dataclass(frozen=True)
class Situation:
    """What decides whether a request can be rolled back.

    Attributes:
        recoveries: how often it was already.
        grammar: name of the grammar's class.
        delivered: output tokens that it has.
        speculates: the engine drafts tokens: the worker's state of the drafts cannot be taken back.
        draws_from_seed: its tokens are drawn with its own generator, whose numbers are used up by the
            steps that are thrown away.
        resumable: it is a session that can take further input.
        has_prompt_logprobs: the first step's prompt logprobs would be lost.
        has_connector: something outside (KV transfer, encoder cache, auxiliary outputs) follows its steps.
    """

    recoveries: int
    grammar: str
    delivered: int
    speculates: bool
    draws_from_seed: bool
    resumable: bool
    has_prompt_logprobs: bool
    has_connector: bool


def obstacle(situation: Situation) -> str:
    """Return why the request has to end, in words; empty when it can be rolled back."""
    if situation.recoveries >= MAX_RECOVERIES:
        return f"it was rolled back {situation.recoveries} times before"
    if situation.grammar not in PROVEN_GRAMMARS:
        return f"a {situation.grammar} cannot be set back"
    if situation.speculates:
        return "the engine drafts tokens"
    if situation.resumable:
        return "it is a session"
    if situation.has_connector:
        return "a connector follows its steps"
    if situation.has_prompt_logprobs:
        return "it wants prompt logprobs"
    # Before the first token it starts over, with a new generator; after that it would go on with later
    # numbers, and its text would silently be another one than its seed gives.
    if situation.draws_from_seed and situation.delivered > 0:
        return "it draws from its seed"
    return ""
