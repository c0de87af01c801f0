"""A cut-off answer is right only if it can be continued to one that the schema allows."""

import pytest

from tools.bench.engine.answers import is_prefix_of_an_answer

WHOLE = '[{"k":"red","v":0,"b":true},{"k":"kind3","v":9999,"b":false},{"k":"blue","v":10,"b":true},'


def test_every_prefix_of_a_right_answer_is_right() -> None:
    for length in range(len(WHOLE) + 1):
        assert is_prefix_of_an_answer(WHOLE[:length], 3), WHOLE[:length]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '["k"',
        '[{"v":',
        '[{"k":"pink"',
        '[{"k":"kind4"',  # Another request's word: its mask was used.
        '[{"k":"redd',
        '[{"k":"red", "v"',
        '[{"k":"red","v":01',
        '[{"k":"red","v":12345',
        '[{"k":"red","v":"1"',
        '[{"k":"red","v":,"b"',
        '[{"k":"red","v":1,"b":tru}',
        '[{"k":"red","v":1,"b":true}{',
        '[{"k":"red","v":1,"b":true}]',
        '[{"k":"red","v":1,"b":true,"c":1',
    ],
)
def test_what_the_schema_does_not_allow_is_wrong(text: str) -> None:
    assert not is_prefix_of_an_answer(text, 3)
