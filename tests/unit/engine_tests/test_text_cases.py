"""The comparison of two sets of answers sees what it must see, and the set of requests has what it must."""

import collections

from tests.engine.text_cases import Answer, Choice, cases, differences


def answer(*tokens: int, finish: str | None = "stop", logprobs: tuple[float, ...] = ()) -> Answer:
    return Answer((Choice(list(tokens), list(logprobs), finish, "text"),))


def test_equal_answers_do_not_differ() -> None:
    both = {"a": answer(1, 2, 3), "b": answer(4, logprobs=(-0.5,))}
    assert differences(both, both) == []


def test_one_changed_token_is_seen() -> None:
    found = differences({"a": answer(1, 9, 3)}, {"a": answer(1, 2, 3)})
    assert len(found) == 1
    assert "tokens differ from 1" in found[0]


def test_a_missing_and_an_additional_token_are_seen() -> None:
    assert "differ from 2" in differences({"a": answer(1, 2)}, {"a": answer(1, 2, 3)})[0]
    assert "differ from 3" in differences({"a": answer(1, 2, 3, 4)}, {"a": answer(1, 2, 3)})[0]


def test_swapped_tokens_are_seen() -> None:
    assert differences({"a": answer(2, 1)}, {"a": answer(1, 2)}) != []


def test_a_missing_answer_or_choice_is_seen() -> None:
    assert differences({}, {"a": answer(1)}) == ["a: no answer"]
    assert differences({"a": Answer(())}, {"a": answer(1)}) == ["a: 0 choices instead of 1"]


def test_another_finish_reason_is_seen() -> None:
    found = differences({"a": answer(1, finish="length")}, {"a": answer(1)})
    assert found == ["a[0]: finished by length instead of stop"]


def test_log_probabilities_may_round_but_not_differ() -> None:
    expected = {"a": answer(1, 2, logprobs=(-1.0, -2.0))}
    assert differences({"a": answer(1, 2, logprobs=(-1.00001, -2.0))}, expected) == []
    assert "differ by 0.5" in differences({"a": answer(1, 2, logprobs=(-1.5, -2.0))}, expected)[0]
    assert (
        "1 log-probabilities instead of 2" in differences({"a": answer(1, 2, logprobs=(-1.0,))}, expected)[0]
    )


def test_who_left_must_have_got_the_beginning() -> None:
    expected = {"a": answer(1, 2, 3)}
    assert differences({"a": answer(1, 2, finish=None)}, expected) == []
    assert differences({"a": answer(1, 3, finish=None)}, expected) != []
    assert differences({"a": answer(1, 2, 3, 4, finish=None)}, expected) != []


def test_the_set_has_all_groups_structured_and_plain() -> None:
    kinds = collections.Counter((c.name.partition("-")[0], c.schema is not None) for c in cases())
    groups = ("greedy", "seeded", "long", "prefix", "three", "logprobs", "leaver")
    assert all(kinds[group, structured] > 0 for group in groups for structured in (True, False))
    assert cases() == cases()
