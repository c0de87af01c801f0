"""The workers of the fake executor: which tokens they know, and how they learn them.

Models the two rules of vLLM 0.32 by which a sampled token reaches the stages that need it as input:

- V1 (`v1/worker/gpu_model_runner.py`): the ids of the immediately preceding step only, and only of requests
  that stay in the batch; a request that was left out of a step gets what the scheduler knew when it was
  scheduled again (`all_token_ids`).
- V2 (`v1/worker/gpu/pp_utils.py`): a ring; what a step sampled is there from `pp` steps later on.

A token that is needed and not there is a fault. The real worker computes with whatever lies in its buffer
then, and nobody notices: the text is another one and still valid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.engine.inside.order.grammar import tokens_of
from tests.engine.inside.order.tokens import LOST, Answer, propose, sample


@dataclass(frozen=True)
class Row:
    """What a step does for one request.

    Attributes:
        request_id: the request.
        samples: whether it samples; a chunk of a prefill that is not the last does not.
        window: draft positions that were scheduled.
        drafts: the worker's own drafts for them; fewer when it has none.
        last: the newest token before the window as the stages know it.
    """

    request_id: str
    samples: bool
    window: int
    drafts: tuple[int, ...]
    last: int


@dataclass
class Workers:
    """All stages together: they share one view, since each gets the same messages in the same order.

    Attributes:
        said: by request, every output token that was sampled so far, processed or not.
    """

    answers: Mapping[str, Answer]
    fault: Callable[[str], None]
    v2: bool
    stages: int
    draft_tokens: int
    synchronous: bool = False
    said: dict[str, list[int]] = field(default_factory=dict)
    _step: int = 0
    _batch: set[str] = field(default_factory=set)
    _handed_over: set[str] = field(default_factory=set)
    _known: dict[str, int] = field(default_factory=dict)
    _sampled_at: dict[str, int] = field(default_factory=dict)
    _proposals: dict[str, list[int]] = field(default_factory=dict)

    def execute(self, step: Any) -> list[Row]:
        """Take a `SchedulerOutput` as a worker does before its forward pass."""
        self._step += 1
        for request_id in step.finished_req_ids:
            self._forget(request_id)
        cached = step.scheduled_cached_reqs
        scheduled = set(step.num_scheduled_tokens)
        staying = self._batch & (scheduled - cached.resumed_req_ids)
        self._handed_over &= staying
        rows = [self._row_of_new(step, new) for new in step.scheduled_new_reqs]
        for number, request_id in enumerate(cached.req_ids):
            prompt = self.answers[request_id].prompt
            if request_id not in staying and not self.v2:
                self._learn(request_id, cached.all_token_ids[request_id][prompt:])
                if request_id in cached.resumed_req_ids:
                    self._start_anew(request_id)
            total = prompt + cached.num_output_tokens[number]
            rows.append(self._row(step, request_id, cached.num_computed_tokens[number], total))
        self._batch = scheduled
        return rows

    def sample(self, rows: Sequence[Row], grammar: Any) -> list[list[int]]:
        """Return the sampled tokens of every row, and keep them as a worker does."""
        masks = _masks_by_request(rows, grammar)
        self._handed_over = set()
        sampled = [self._sample_row(row, masks) for row in rows]
        for row, tokens in zip(rows, sampled, strict=True):
            if not tokens:
                continue
            self.said[row.request_id].extend(tokens)
            self._handed_over.add(row.request_id)
            self._sampled_at[row.request_id] = self._step
            if self.draft_tokens:
                self._proposals[row.request_id] = propose(
                    self.answers[row.request_id], self.said[row.request_id], self.draft_tokens
                )
        return sampled

    def proposals(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return the newest drafts for each row's request."""
        return [list(self._proposals.get(row.request_id, [0] * self.draft_tokens)) for row in rows]

    def _row_of_new(self, step: Any, new: Any) -> Row:
        # V2 sends a resumed request as a new one, with its outputs as a part of the prefill.
        prefill = list(new.prefill_token_ids) if self.v2 else list(new.prompt_token_ids)
        self._learn(new.req_id, prefill[self.answers[new.req_id].prompt :])
        self._start_anew(new.req_id)
        return self._row(step, new.req_id, new.num_computed_tokens, len(prefill))

    def _learn(self, request_id: str, outputs: Sequence[int]) -> None:
        """Take the output tokens that the scheduler sent along with a request that enters the batch."""
        known = list(outputs)
        said = self.said.setdefault(request_id, [])
        if said[: len(known)] != known:
            self.fault(f"{request_id}: the scheduler sent {known}, sampled were {said}")
        self._known[request_id] = len(known)

    def _start_anew(self, request_id: str) -> None:
        """Drop what was sampled and is not known to the scheduler: it has those positions sampled again."""
        del self.said[request_id][self._known[request_id] :]

    def _row(self, step: Any, request_id: str, computed: int, total: int) -> Row:
        window = len(step.scheduled_spec_decode_tokens.get(request_id, ()))
        samples = computed + step.num_scheduled_tokens[request_id] >= total
        has_drafts = self.v2 or self.synchronous or request_id in self._handed_over
        drafts = self._proposals.get(request_id, ())[:window] if has_drafts else ()
        last = self._last(request_id) if samples else LOST
        return Row(request_id, samples, window, tuple(drafts), last)

    def _last(self, request_id: str) -> int:
        said = self.said[request_id]
        if not said:
            return self.answers[request_id].prompt_tokens[-1]
        if self._is_there(request_id):
            return said[-1]
        self.fault(f"{request_id}: output token {len(said) - 1} is an input and was not handed over")
        return LOST

    def _is_there(self, request_id: str) -> bool:
        if self.synchronous or self._known[request_id] == len(self.said[request_id]):
            return True
        if self.v2:
            return self._step - self._sampled_at[request_id] >= self.stages
        return request_id in self._handed_over

    def _sample_row(self, row: Row, masks: Mapping[str, tuple[Any, int]]) -> list[int]:
        if not row.samples:
            return []
        answer = self.answers[row.request_id]
        position = len(self.said[row.request_id])
        mask, acceptable = masks.get(row.request_id, (None, row.window))
        last, tokens = row.last, list[int]()
        for offset in range(row.window + 1):
            possible = None if mask is None else tokens_of(mask[offset])
            last = sample(answer, position + offset, last, possible)
            tokens.append(last)
            if offset >= min(acceptable, len(row.drafts)) or row.drafts[offset] != last:
                break
        return tokens

    def _forget(self, request_id: str) -> None:
        for owned in (self.said, self._known, self._sampled_at, self._proposals):
            owned.pop(request_id, None)
        self._handed_over.discard(request_id)
        self._batch.discard(request_id)


def _masks_by_request(rows: Sequence[Row], grammar: Any) -> dict[str, tuple[Any, int]]:
    """Return each structured request's mask rows and how many of its drafts they bind."""
    if grammar is None:
        return {}
    windows = {row.request_id: row.window for row in rows}
    found: dict[str, tuple[Any, int]] = {}
    first = 0
    for number, request_id in enumerate(grammar.structured_output_request_ids):
        count = windows[request_id] + 1
        # The bitmask is a view of a buffer that the next step overwrites.
        found[request_id] = (
            grammar.grammar_bitmask[first : first + count].tolist(),
            grammar.num_acceptable_drafts[number],
        )
        first += count
    return found
