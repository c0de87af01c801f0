"""What structured requests ask for, and whether an answer that was cut off is right so far. Pure.

All answers of a case have the same number of tokens, so they end in the middle of the array. Each character
up to there is checked: a schema check of the whole would need its end.
"""

from typing import Any

COLOURS = ("red", "green", "blue")
VARIANTS = 12
"""Different schemas; compiled before the measurement, so the engine's grammars differ within a batch."""

MAX_DIGITS = 4


def schema_of(number: int) -> dict[str, Any]:
    """Return the schema of a request: an array that no answer gets to the end of."""
    item = {
        "type": "object",
        "properties": {
            "k": {"type": "string", "enum": [*COLOURS, variant_name(number)]},
            "v": {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1},
            "b": {"type": "boolean"},
        },
        "required": ["k", "v", "b"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": 100, "maxItems": 100}


def variant_name(number: int) -> str:
    """Return the word that only requests of this number's schema may say."""
    return f"kind{number % VARIANTS}"


def is_prefix_of_an_answer(text: str, number: int) -> bool:
    """Return whether `text` can be continued to an answer that the request's schema allows.

    Without whitespace, as the engine is told to write.
    """
    reader = _Reader(text)
    reader.literal("[")
    while not reader.done:
        reader.literal('{"k":"')
        reader.one_of([*COLOURS, variant_name(number)], '"')
        reader.literal(',"v":')
        reader.integer()
        reader.literal(',"b":')
        reader.one_of(["true", "false"], "}")
        reader.literal(",")
    return reader.right


class _Reader:
    """Reads pieces from the front; at the text's end every piece may be cut off."""

    def __init__(self, text: str) -> None:
        self._rest = text
        self.right = True

    @property
    def done(self) -> bool:
        return not self.right or not self._rest

    def literal(self, piece: str) -> None:
        """Read `piece`, or as much of it as there is."""
        if not self.done:
            self.right = piece.startswith(self._rest) or self._rest.startswith(piece)
            self._rest = self._rest[len(piece) :]

    def one_of(self, words: list[str], end: str) -> None:
        """Read one of `words` and what closes it."""
        if self.done:
            return
        for word in words:
            if self._rest.startswith(word + end):
                self._rest = self._rest[len(word + end) :]
                return
        self.right = any((word + end).startswith(self._rest) for word in words)
        self._rest = ""

    def integer(self) -> None:
        """Read a whole number without leading zeros."""
        if self.done:
            return
        digits = len(self._rest) - len(self._rest.lstrip("0123456789"))
        number = self._rest[:digits]
        self._rest = self._rest[digits:]
        self.right = digits <= MAX_DIGITS and (not number.startswith("0") or digits == 1)
        if not number:
            self.right = False
