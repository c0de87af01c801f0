"""Which compilation runs when: a fast lane, a slow lane, and what becomes of a job that takes too long. Pure.

The aim: a grammar that takes for ever to compile (a "bomb") must cost its own request an error and nobody
else anything. Nobody can tell a bomb from its text alone, so a job shows what it is by running:

- A job starts in the fast lane, which has a few slots, the lightest waiting job first.
- One that looks heavy (see `guided.weight`) never takes a fast slot; it waits for the slow lane, which takes
  the lightest and the one that has waited for the longest time in turn: neither is held up by many bombs.
- A job that has used up its slice is demoted: it goes on where it runs, at the lowest priority, in the slow
  lane; its fast slot is free at once. With the slow lane full it keeps the slot.
- Then, with somebody waiting, a job that has used up its patience is stopped and put behind the heavy ones;
  it starts anew when the slow lane has room.
- A job is stopped when it has run for its time limit, and refused when it has waited for too long or when
  too many wait.

Times are seconds of one clock that the caller reads; job ids are the caller's and ascend.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """Where a job runs."""

    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True)
class LaneLimits:
    """Sizes of the lanes.

    Attributes:
        fast_slots: jobs that run in the fast lane at a time; at least 1.
        slow_slots: jobs that run in the slow lane at a time; at least 1.
        waiting_places: jobs that wait for the fast lane, and again as many for the slow lane.
        slice_seconds: time in the fast lane before a job is demoted.
        patience_seconds: time in the fast lane before a job must leave it although the slow lane is full.
        timeout_seconds: time that a job may run.
        waiting_seconds: time that a job may wait.
        heavy_weight: weight from which on a job looks heavy.
    """

    fast_slots: int
    slow_slots: int
    waiting_places: int = 512
    slice_seconds: float = 0.05
    patience_seconds: float = 0.25
    timeout_seconds: float = 10.0
    waiting_seconds: float = 60.0
    heavy_weight: int = 20_000


class Refusal(StrEnum):
    """Why a job ends without a result."""

    TIMEOUT = "timeout"
    """It ran for its time limit."""

    CROWDED = "crowded"
    """Others kept it from running: too many wait, or it waited for too long."""


@dataclass(frozen=True)
class Start:
    """Run the job in this lane."""

    job_id: int
    lane: Lane


@dataclass(frozen=True)
class Demote:
    """Lower the running job's priority to that of the slow lane; it goes on."""

    job_id: int


@dataclass(frozen=True)
class Park:
    """Stop the running job; it will be started anew."""

    job_id: int


@dataclass(frozen=True)
class Refuse:
    """End the job without a result; stop it if it runs."""

    job_id: int
    reason: Refusal
    running: bool


Action = Start | Demote | Park | Refuse


@dataclass
class _Job:
    job_id: int
    weight: int
    since: float
    """When it began to run, or to wait."""

    demoted: bool = False
    parked: bool = False


class Lanes:
    """The jobs of one pool; not thread-safe."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._order: list[tuple[int, int]] = []
        self._light: dict[int, _Job] = {}
        self._heavy: OrderedDict[int, _Job] = OrderedDict()
        self._fast: OrderedDict[int, _Job] = OrderedDict()
        self._slow: dict[int, _Job] = {}
        self._lightest_next = True

    def __len__(self) -> int:
        return len(self._light) + len(self._heavy) + self.running

    @property
    def running(self) -> int:
        """Return how many jobs run, in both lanes."""
        return len(self._fast) + len(self._slow)

    def submit(self, job_id: int, weight: int, now: float) -> Refuse | None:
        """Take a job, for which `advance` says when to start it; or refuse it when too many wait."""
        heavy = weight >= self._limits.heavy_weight
        if len(self._heavy if heavy else self._light) >= self._limits.waiting_places:
            return Refuse(job_id, Refusal.CROWDED, running=False)
        job = _Job(job_id, weight, now)
        if heavy:
            self._heavy[job_id] = job
        else:
            self._light[job_id] = job
            heapq.heappush(self._order, (weight, job_id))
        return None

    def finished(self, job_id: int) -> None:
        """Note that a job ended by itself (or that its caller gave up on it); unknown ids are ignored."""
        for place in (self._light, self._heavy, self._fast, self._slow):
            place.pop(job_id, None)

    def advance(self, now: float, *, may_start: bool = True) -> list[Action]:
        """Return what has to be done at this time, in this order; without workers nothing may start."""
        actions: list[Action] = []
        self._refuse_late(now, actions)
        self._leave_fast_lane(now, actions)
        if may_start:
            self._start(now, actions)
        return actions

    def wake_at(self) -> float | None:
        """Return the next time at which `advance` may have something to do; None without jobs."""
        limits = self._limits
        times = [job.since + limits.timeout_seconds for job in self._running()]
        times += [job.since + limits.waiting_seconds for job in self._waiting()]
        room = len(self._slow) < limits.slow_slots
        times += [job.since + limits.slice_seconds for job in self._fast.values() if room or not job.demoted]
        if self._light and not room:
            times += [job.since + limits.patience_seconds for job in self._fast.values()]
        return min(times, default=None)

    def _running(self) -> list[_Job]:
        return [*self._fast.values(), *self._slow.values()]

    def _waiting(self) -> list[_Job]:
        return [*self._light.values(), *self._heavy.values()]

    def _refuse_late(self, now: float, actions: list[Action]) -> None:
        late: list[Action] = [
            Refuse(job.job_id, Refusal.TIMEOUT, running=True)
            for job in self._running()
            if now >= job.since + self._limits.timeout_seconds
        ]
        late += [
            Refuse(job.job_id, Refusal.CROWDED, running=False)
            for job in self._waiting()
            if now >= job.since + self._limits.waiting_seconds
        ]
        for refuse in late:
            self.finished(refuse.job_id)
        actions.extend(late)

    def _leave_fast_lane(self, now: float, actions: list[Action]) -> None:
        for job_id, job in list(self._fast.items()):
            ran = now - job.since
            if ran < self._limits.slice_seconds:
                continue
            if len(self._slow) < self._limits.slow_slots:
                self._slow[job_id] = self._fast.pop(job_id)
                self._demote(job, actions)
            elif ran >= self._limits.patience_seconds and self._light:
                del self._fast[job_id]
                if len(self._heavy) < self._limits.waiting_places:
                    job.since, job.demoted, job.parked = now, False, True
                    self._heavy[job_id] = job
                    actions.append(Park(job_id))
                else:
                    actions.append(Refuse(job_id, Refusal.CROWDED, running=True))
            else:
                self._demote(job, actions)

    def _demote(self, job: _Job, actions: list[Action]) -> None:
        if not job.demoted:
            job.demoted = True
            actions.append(Demote(job.job_id))

    def _pop_heavy(self) -> _Job:
        """Take the lightest, and the one that has waited for the longest time, in turn."""
        lightest, self._lightest_next = self._lightest_next, not self._lightest_next
        if lightest:
            first = min(self._heavy.values(), key=lambda job: (job.parked, job.weight, job.job_id))
            return self._heavy.pop(first.job_id)
        return self._heavy.popitem(last=False)[1]

    def _start(self, now: float, actions: list[Action]) -> None:
        while self._heavy and len(self._slow) < self._limits.slow_slots:
            job = self._pop_heavy()
            job.since, job.demoted = now, True
            self._slow[job.job_id] = job
            actions.append(Start(job.job_id, Lane.SLOW))
        while self._light and len(self._fast) < self._limits.fast_slots:
            _, job_id = heapq.heappop(self._order)
            waiting = self._light.pop(job_id, None)
            if waiting is not None:
                waiting.since = now
                self._fast[job_id] = waiting
                actions.append(Start(job_id, Lane.FAST))
