"""What can go wrong with the benchmark itself."""


class BenchError(Exception):
    """The benchmark cannot go on; the message says what to do."""


class MissingError(Exception):
    """A contender cannot run here; the message is the reason, which the results state."""
