"""The plumbing's generator under vLLM's own sampler: a draw that is taken back is drawn again."""

import pytest
import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

LOGITS = torch.zeros(1, 2048)


def seeded() -> torch.Generator:
    generator = torch.Generator(device="cpu")
    generator.manual_seed(7)
    return generator


def draw(sampler: TopKTopPSampler, generator: torch.Generator) -> int:
    tokens, _ = sampler.forward(LOGITS.clone(), {0: generator}, None, None)
    return int(tokens[0])


def take_back(generator: torch.Generator) -> None:
    """As `GPUModelRunner._bookkeeping_sync` does for a row whose prompt is not complete."""
    generator.set_offset(generator.get_offset() - 4)


def test_chunks_of_a_prompt_do_not_change_the_draws() -> None:
    sampler, whole, chunked = TopKTopPSampler(), seeded(), seeded()
    expected = [draw(sampler, whole) for _ in range(8)]
    for _ in range(3):
        draw(sampler, chunked)
        take_back(chunked)
    found = [draw(sampler, chunked) for _ in range(3)]
    # A preempted request computes its prompt and its tokens again, in chunks.
    for _ in range(2):
        draw(sampler, chunked)
        take_back(chunked)
    found += [draw(sampler, chunked) for _ in range(5)]
    assert found == expected
    assert len(set(expected)) > 1


def test_without_taking_back_the_draws_differ() -> None:
    sampler, whole, chunked = TopKTopPSampler(), seeded(), seeded()
    draw(sampler, chunked)
    assert [draw(sampler, whole) for _ in range(8)] != [draw(sampler, chunked) for _ in range(8)]


def test_only_the_latest_draw_can_be_taken_back() -> None:
    generator = seeded()
    with pytest.raises(ValueError, match="only the latest"):
        generator.set_offset(generator.get_offset() - 8)
