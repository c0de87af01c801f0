"""A matcher that has refused a token is as good as new after `reset` and its old tokens."""

import json
from collections.abc import Callable
from typing import Any

import llguidance
import llguidance.torch
import pytest
import xgrammar as xgr
from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from structuredllm_engine_patches.guided.recovery import PROVEN_GRAMMARS
from structuredllm_engine_patches.seams import recovery
from tests.engine.inside.recovery.bench import compiler
from tests.engine.inside.recovery.kv_executor import VOCABULARY

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
TEXT = b'{"a":12'
WHOLE = TEXT + b"}"
Mask = list[int]


def new_xgrammar() -> XgrammarGrammar:
    compiled = compiler().compile_json_schema(SCHEMA, any_whitespace=False, separators=(",", ":"))
    return XgrammarGrammar(matcher=xgr.GrammarMatcher(compiled), vocab_size=VOCABULARY, ctx=compiled)


def new_guidance() -> GuidanceGrammar:
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, defaults={"whitespace_flexible": False})
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    return GuidanceGrammar(ll_matcher=matcher, ll_tokenizer=tokenizer, vocab_size=tokenizer.vocab_size)


def mask_of(grammar: Any) -> Mask:
    if isinstance(grammar, XgrammarGrammar):
        bitmask = xgr.allocate_token_bitmask(1, VOCABULARY)
    else:
        bitmask = llguidance.torch.allocate_token_bitmask(1, grammar.vocab_size)
    grammar.fill_bitmask(bitmask, 0)
    found: Mask = bitmask[0].tolist()
    return found


class Request:
    request_id = "r"

    def __init__(self, tokens: bytes) -> None:
        self.output_token_ids = list(tokens)


@pytest.mark.parametrize("new", [new_xgrammar, new_guidance])
@pytest.mark.parametrize("length", range(len(TEXT) + 1))
def test_set_back_is_as_good_as_new(new: Callable[[], Any], length: int) -> None:
    assert new().__class__.__name__ in PROVEN_GRAMMARS
    fresh, used = new(), new()
    for token in TEXT[:length]:
        assert fresh.accept_tokens("r", [token])
        assert used.accept_tokens("r", [token])
    for _ in range(3):
        assert not recovery._takes(used, "r", [ord("~")])
        assert recovery._set_back(used, Request(TEXT[:length]))
        assert mask_of(used) == mask_of(fresh)
        assert not used.is_terminated()
    for grammar in (fresh, used):
        assert all(recovery._takes(grammar, "r", [token]) for token in WHOLE[length:])
    assert mask_of(used) == mask_of(fresh)


def test_a_refused_token_breaks_guidances_matcher_for_good() -> None:
    """Why it is asked first. When this fails, llguidance mends itself and the question can go."""
    grammar = new_guidance()
    assert not grammar.accept_tokens("r", [ord("~")])
    grammar.reset()
    assert grammar.accept_tokens("r", [ord("~")]), "vLLM's wrapper takes a broken matcher for a finished one"


@pytest.mark.parametrize("new", [new_xgrammar, new_guidance])
def test_a_history_that_the_grammar_refuses_is_noticed(new: Callable[[], Any]) -> None:
    assert not recovery._set_back(new(), Request(b'{"b"'))
