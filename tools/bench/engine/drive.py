"""Runs in the engine's environment: starts one engine, asks it every case of an arm, prints a line for each.

Usage: `python -m tools.bench.engine.drive PLAN.json`; a result is a line that begins with RESULT_MARK. The
engine is vLLM's own `AsyncLLM` in this process (no HTTP): on two cores the API server would be what is
measured.
"""

import asyncio
import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.engine.answers import VARIANTS, is_prefix_of_an_answer, schema_of
from tools.bench.engine.cases import Arrival, Case, Kind, StageTime

RESULT_MARK = "BENCH-RESULT "
STEADY_ROUNDS = 2
CASE_TIMEOUT_SECONDS = 240.0
SETTLING_REQUESTS, SETTLING_TOKENS = 48, 24
"""Asked before a stage time's first case, in every arm: what the engine learns of it takes some tokens."""

NO_STAGE_TIME = StageTime("none", 0, 0)


@dataclass
class Answer:
    """What came back for one request.

    Attributes:
        number: the request's number.
        begin: when it was sent.
        arrivals: when each piece of the answer came, and its tokens.
        text: the answer.
        token_ids: its token ids.
        error: what went wrong; empty when nothing did.
    """

    number: int
    begin: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    error: str = ""


class Driver:
    """Asks one engine."""

    def __init__(self, plan: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._stage_file = Path(plan["stage_file"]) if plan.get("stage_file") else None
        self._pipeline = plan["engine_args"].get("pipeline_parallel_size", 1)
        self._count = 0
        self._settled_for = NO_STAGE_TIME
        self.set_stage(NO_STAGE_TIME)
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**plan["engine_args"]))

    def set_stage(self, stage: StageTime) -> None:
        """Set the emulated stage time; takes effect with the next forward pass."""
        if self._stage_file is not None:
            self._stage_file.write_text(stage.text())

    async def ask(self, number: int, kind: Kind, tokens: int) -> Answer:
        """Ask one request and wait for all of its answer."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structured = StructuredOutputsParams(json=schema_of(number)) if kind is Kind.STRUCTURED else None
        params = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=kind is Kind.PLAIN,
            structured_outputs=structured,
            output_kind=RequestOutputKind.DELTA,
        )
        self._count += 1
        answer = Answer(number, time.monotonic())
        # One token: a prefill is a decode then, and the figures are about decoding.
        prompt = {"prompt_token_ids": [300 + number]}
        try:
            async for output in self.engine.generate(prompt, params, request_id=f"b{self._count}"):
                piece = output.outputs[0]
                answer.arrivals.append((time.monotonic(), len(piece.token_ids)))
                answer.text += piece.text
                answer.token_ids += piece.token_ids
        except Exception as error:  # Whatever the engine raises is this request's result.
            answer.error = type(error).__name__
        if not answer.error:
            if len(answer.token_ids) != tokens:
                answer.error = f"{len(answer.token_ids)} of {tokens} tokens"
            elif structured is not None and not is_prefix_of_an_answer(answer.text.rstrip("\ufffd"), number):
                answer.error = f"breaks its schema: {answer.text[:80]!r}"
        return answer

    async def warm_up(self) -> None:
        """Compile all schemas and let every code path run once."""
        await asyncio.gather(*(self.ask(number, Kind.STRUCTURED, 8) for number in range(VARIANTS)))
        await asyncio.gather(*(self.ask(number, Kind.PLAIN, 8) for number in range(8)))

    async def run(self, case: Case) -> dict[str, Any]:
        """Measure one case."""
        self.set_stage(case.stage)
        if case.stage != self._settled_for:
            self._settled_for = case.stage
            settling = Case(case.stage, Arrival.BURST, SETTLING_REQUESTS, Kind.PLAIN, SETTLING_TOKENS)
            await asyncio.wait_for(self._burst(settling), CASE_TIMEOUT_SECONDS)
        runner = self._burst if case.arrival is Arrival.BURST else self._steady
        begin, end, answers = await asyncio.wait_for(runner(case), CASE_TIMEOUT_SECONDS)
        return summarize(case, begin, end, answers)

    async def _burst(self, case: Case) -> tuple[float, float, list[Answer]]:
        begin = time.monotonic()
        answers = await asyncio.gather(
            *(self.ask(number, case.kind, case.tokens) for number in range(case.requests))
        )
        return begin, time.monotonic(), list(answers)

    async def _steady(self, case: Case) -> tuple[float, float, list[Answer]]:
        """As many clients as requests, each asks again when its answer is complete.

        The first ones come one by one, over the time that an answer takes when the phases are in balance.
        """
        answers: list[Answer] = []
        first = asyncio.Event()
        started = 0
        all_started = 0.0
        share = case.requests / self._pipeline
        step_ms = self._pipeline * (case.stage.fixed_ms + case.stage.per_token_ms * share)
        spacing = case.tokens * step_ms / 1000 / case.requests

        async def client(number: int) -> None:
            nonlocal started, all_started
            await asyncio.sleep(number * spacing)
            started += 1
            if started == case.requests:
                all_started = time.monotonic()
            for _ in range(STEADY_ROUNDS):
                answer = await self.ask(number, case.kind, case.tokens)
                answers.append(answer)
            first.set()

        clients = [asyncio.create_task(client(number)) for number in range(case.requests)]
        await first.wait()
        end = time.monotonic()
        await asyncio.gather(*clients)
        return all_started, end, answers


def summarize(case: Case, begin: float, end: float, answers: list[Answer]) -> dict[str, Any]:
    """Return a case's figures; times in seconds, rates per second."""
    arrivals = [(when, count) for a in answers for when, count in a.arrivals if begin <= when <= end]
    gaps = sorted(
        later - earlier
        for a in answers
        for (earlier, _), (later, _) in zip(a.arrivals, a.arrivals[1:], strict=False)
        if begin <= earlier and later <= end
    )
    firsts = sorted(a.arrivals[0][0] - a.begin for a in answers if a.arrivals)
    errors = [a.error for a in answers if a.error]
    texts = hashlib.sha256()
    for answer in sorted(answers, key=lambda a: a.number):
        texts.update(repr((answer.number, answer.token_ids)).encode())
    return {
        "case": case.name,
        "begin": begin,
        "end": end,
        "seconds": round(end - begin, 3),
        "tokens": sum(count for _, count in arrivals),
        "tokens_per_second": round(sum(count for _, count in arrivals) / (end - begin), 2),
        "inter_token_p50_ms": round(1000 * quantile(gaps, 0.5), 2),
        "inter_token_p99_ms": round(1000 * quantile(gaps, 0.99), 2),
        "first_token_p50_ms": round(1000 * quantile(firsts, 0.5), 2),
        "answers": len(answers),
        "wrong": len(errors),
        "errors": sorted(set(errors))[:5],
        "digest": texts.hexdigest()[:16],
    }


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` of the ordered values lie; 0 for none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def case_of(data: dict[str, Any]) -> Case:
    """Return a case from the plan's JSON."""
    return Case(
        StageTime(**data["stage"]),
        Arrival(data["arrival"]),
        data["requests"],
        Kind(data["kind"]),
        data["tokens"],
    )


async def main(plan: dict[str, Any]) -> None:
    """Run the plan."""
    driver = Driver(plan)
    try:
        await driver.warm_up()
        for data in plan["cases"]:
            result = await driver.run(case_of(data))
            print(RESULT_MARK + json.dumps(result), flush=True)
    finally:
        driver.engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
