"""Stands in for a vLLM module that patches are aimed at."""


class Engine:
    """Has one method to be replaced."""

    def step(self) -> list[str]:
        return ["upstream"]
