"""Seeded requests on the CPU: a generator that can take its last draw back.

vLLM draws a number for every row of a batch, and where the row's prompt was not complete yet it takes the
draw back with `set_offset(get_offset() - 4)`. Only accelerators' generators have offsets. With the draw taken
back the seeded text does not depend on how the prompt was chunked, as on an accelerator.
"""

from collections.abc import Iterable
from typing import Any

import torch

DRAW = 4
"""What vLLM takes a draw to add to a generator's offset (gpu_model_runner.py, `_bookkeeping_sync`)."""


class RewindableGenerator(torch.Generator):  # type: ignore[misc]
    """A CPU generator that remembers its state before the latest draw."""

    before_draw: torch.Tensor | None = None

    def note_draw(self) -> None:
        """Remember the state; to be called before a draw that may be taken back."""
        self.before_draw = self.get_state()

    def get_offset(self) -> int:
        """Return the offset that one draw makes."""
        return DRAW

    def set_offset(self, offset: int) -> None:
        """Take the latest draw back.

        Raises:
            ValueError: more than one draw is to be taken back, which nothing in vLLM 0.32.0 does.
        """
        if offset != 0:
            raise ValueError(f"offset {offset}: only the latest draw can be taken back")
        if self.before_draw is not None:
            self.set_state(self.before_draw)
            self.before_draw = None


def note_draws(generators: Iterable[Any]) -> None:
    """Remember the state of each generator."""
    for generator in generators:
        generator.note_draw()


def install() -> None:
    """Make vLLM create such generators, and note each draw of its sampler on the CPU."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    torch.Generator = RewindableGenerator
    original = TopKTopPSampler.forward_cpu

    def forward_cpu(self: Any, logits: Any, generators: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
        note_draws(generators.values())
        return original(self, logits, generators, *args, **kwargs)

    TopKTopPSampler.forward_cpu = forward_cpu
