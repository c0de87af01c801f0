"""What is measured: arms (how the engine is set up), cases (what it is asked), and the two profiles."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What the requests ask for."""

    PLAIN = "unstructured"
    STRUCTURED = "structured"


class Arrival(StrEnum):
    """When the requests come."""

    BURST = "burst"
    """All at once; measured from the first to the end of the last."""

    STEADY = "steady"
    """Spread over a request's length, and each that ends is followed by another one; measured while all are
    running."""


@dataclass(frozen=True)
class StageTime:
    """Emulated time of a stage's forward pass.

    Attributes:
        name: name in the results.
        fixed_ms: milliseconds whatever the batch.
        per_token_ms: milliseconds more per token of the step.
    """

    name: str
    fixed_ms: float
    per_token_ms: float

    @property
    def grows(self) -> bool:
        """Return whether the time grows with the batch."""
        return self.per_token_ms > 0

    def text(self) -> str:
        """Return what the test plug-in reads from its file."""
        return f"{self.fixed_ms} {self.per_token_ms}\n"


OWN = StageTime("own", 0, 0)
"""Nothing is emulated: the stage's own time, on a GPU."""

FIXED = StageTime("fixed", 200, 0)
GROWING = StageTime("a+b*tokens", 150, 10)
"""From one stage's end to the next one's begin it takes 14 to 26 ms on two cores, where five processes want
to run; on an engine's own machine 1 to 2. These times keep the proportion to a stage of 10 to 30 ms there."""


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        stage: emulated stage time.
        arrival: when the requests come.
        requests: how many run at the same time.
        kind: what they ask for.
        tokens: tokens of each answer (all answers have the same length).
    """

    stage: StageTime
    arrival: Arrival
    requests: int
    kind: Kind
    tokens: int

    @property
    def name(self) -> str:
        """Return a name that is the same in all arms."""
        return f"{self.stage.name} {self.arrival.value} {self.requests} {self.kind.value}"


@dataclass(frozen=True)
class Arm:
    """One way to run the engine.

    Attributes:
        name: name in the results.
        title: what it is, for people.
        asynchronous: whether scheduling is asynchronous.
        env: environment of the engine.
        structured_is_right: False where upstream rejects structured requests: its figures are no comparison.
    """

    name: str
    title: str
    asynchronous: bool
    env: Mapping[str, str] = field(default_factory=dict)
    structured_is_right: bool = True


SYNC = Arm("sync", "synchronous scheduling", asynchronous=False, env={"STRUCTUREDLLM_PATCHES": "required"})
UPSTREAM = Arm(
    "async-upstream",
    "asynchronous scheduling as upstream has it, its refusal lifted",
    asynchronous=True,
    env={"STRUCTUREDLLM_PATCHES": "disabled", "STRUCTUREDLLM_TEST_ALLOW_UNPATCHED": "1"},
    structured_is_right=False,
)
DRAIN = Arm(
    "async-drain",
    "asynchronous scheduling, the batch queue's drain alone",
    asynchronous=True,
    env={"STRUCTUREDLLM_PATCHES": "required", "STRUCTUREDLLM_PHASES": "off"},
)
PATCHED = Arm(
    "async-patched",
    "asynchronous scheduling, all patches, phases where they pay",
    asynchronous=True,
    env={"STRUCTUREDLLM_PATCHES": "required", "STRUCTUREDLLM_PHASES": "auto"},
)
ARMS = (SYNC, UPSTREAM, DRAIN, PATCHED)

TOKENS = {16: 16, 48: 12, 144: 6}
STEADY_TOKENS = 6
"""Fewest tokens of an answer with steady arrivals, where everyone asks twice."""

QUICK_TOKENS = {16: 16, 48: 12}
GPU_TOKENS = {16: 128, 48: 128, 144: 128}


@dataclass(frozen=True)
class Profile:
    """A set of measurements.

    Attributes:
        name: name on the command line.
        pipelines: numbers of stages.
        stages: emulated stage times.
        arrivals: ways to arrive.
        tokens: answer length by number of requests, which also says the numbers.
        drain_pipelines: numbers of stages for which the drain alone is measured too.
        upstream: whether upstream's asynchronous scheduling is measured too.
        emulated: whether the test plug-in emulates the stage time, on the CPU.
    """

    name: str
    pipelines: tuple[int, ...]
    stages: tuple[StageTime, ...]
    arrivals: tuple[Arrival, ...]
    tokens: Mapping[int, int]
    drain_pipelines: tuple[int, ...] = (3,)
    upstream: bool = True
    emulated: bool = True

    def arms(self, pipeline: int) -> tuple[Arm, ...]:
        """Return the arms that are measured with so many stages."""
        left_out = set() if pipeline in self.drain_pipelines else {DRAIN.name}
        if not self.upstream:
            left_out.add(UPSTREAM.name)
        return tuple(arm for arm in ARMS if arm.name not in left_out)

    def cases(self) -> Iterator[Case]:
        """Yield the cases of an arm; the two kinds of a comparison follow each other."""
        for stage, arrival, (requests, tokens), kind in itertools.product(
            self.stages, self.arrivals, self.tokens.items(), Kind
        ):
            length = tokens if arrival is Arrival.BURST else max(STEADY_TOKENS, tokens // 2)
            yield Case(stage, arrival, requests, kind, length)


QUICK = Profile("quick", (3,), (FIXED, GROWING), (Arrival.BURST,), QUICK_TOKENS, upstream=False)
FULL = Profile("full", (2, 3, 4), (FIXED, GROWING), tuple(Arrival), TOKENS)
GPU = Profile(
    "gpu", (1, 2, 3, 4), (OWN,), tuple(Arrival), GPU_TOKENS, (1, 2, 3, 4), upstream=False, emulated=False
)
PROFILES = {profile.name: profile for profile in (QUICK, FULL, GPU)}
