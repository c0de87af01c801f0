"""All settings: environment (`STRUCTUREDLLM_GATEWAY_` + group + `__` + name), command line, defaults.

Owns the model and the reasons of the defaults; must not import parts of the gateway that do I/O. The double
underscore is on purpose: Kubernetes injects variables like `STRUCTUREDLLM_GATEWAY_PORT=tcp://...` for a
Service of that name, and none of those has one.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from structuredllm_gateway.admission.rules import Limits
from structuredllm_gateway.upstream.endpoints import (
    GrammarBackend,
    PickPolicy,
    StreamDelivery,
    ValidationMode,
)

_Url = Annotated[AnyHttpUrl, PlainSerializer(str)]


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Group):
    """Ports and life cycle."""

    host: str = Field(default="0.0.0.0", description="Address to listen on.")  # noqa: S104 - a pod has one address
    port: int = Field(default=8080, ge=0, le=65535, description="Port of the API; 0 = a free one.")
    metrics_port: int = Field(default=9090, ge=0, le=65535, description="Port of /metrics; 0 = a free one.")
    workers: int = Field(
        default=1, ge=1, le=64, description="Processes that share the port; more than one uses more cores."
    )
    keepalive_seconds: int = Field(
        default=75, ge=1, description="How long an idle client connection is kept."
    )
    header_timeout_seconds: float = Field(
        default=5.0, gt=0, description="For a request's header to arrive, from the connection's start on."
    )
    write_timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A client that has not read what waits for it for this long is disconnected.",
    )
    write_buffer_bytes: int = Field(
        default=64 * 1024,
        ge=4096,
        description="What may wait for a client before the engine's stream is held.",
    )
    max_header_bytes: int = Field(
        default=32 * 1024, ge=1024, description="Longest request header, with the URL; above it 431."
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Open client connections of a process. Above it the one that has waited longest for a "
        "request is closed; when all are busy the new one gets a 503.",
    )
    drain_delay_seconds: float = Field(
        default=5.0,
        ge=0,
        description="After SIGTERM: /ready says 503 for this long before the port closes, so that load "
        "balancers have taken the gateway out by then.",
    )
    graceful_timeout_seconds: int = Field(
        default=60,
        ge=1,
        description="After the port is closed: how long running requests and streams may go on.",
    )


class AuthMode(StrEnum):
    """Who may ask."""

    KEYS = "keys"
    OPEN = "open"


class AuthSettings(_Group):
    """API keys."""

    mode: AuthMode | None = Field(
        default=None, description="keys or open (everyone may ask). Has no default: the choice is yours."
    )
    keys_file: Path | None = Field(
        default=None,
        description="JSON or YAML file with the hashes of the keys, for mode keys; a change takes effect.",
    )
    reload_seconds: float = Field(default=2.0, gt=0, description="How often the key file is looked at.")
    assumed_tokens: int = Field(
        default=512,
        ge=0,
        description="Tokens reserved for a request that names no max_tokens, until the engine has counted.",
    )

    @model_validator(mode="after")
    def _needs_file(self) -> AuthSettings:
        if self.mode is AuthMode.KEYS and self.keys_file is None:
            raise ValueError("mode keys needs keys_file: the mounted file with the hashes of the keys")
        return self


class DiscoveryMode(StrEnum):
    """Where endpoints come from."""

    KUBERNETES = "kubernetes"
    STATIC = "static"


class StaticEndpointSettings(_Group):
    """One engine of a static list."""

    model: str = Field(min_length=1, description="Served model name.")
    url: _Url = Field(description="Base URL of the engine, without /v1.")
    name: str = Field(
        default="", description="Name of the replica in headers and metrics; default host:port."
    )
    validation: ValidationMode | None = Field(default=None, description="Default: validation.default_mode.")
    streaming: StreamDelivery | None = Field(
        default=None, description="Default: validation.default_streaming."
    )
    repair: bool | None = Field(default=None, description="Default: validation.default_repair.")
    backend: GrammarBackend = Field(
        default=GrammarBackend.AUTO, description="Grammar backend of the engine: auto, xgrammar or guidance."
    )


class DiscoverySettings(_Group):
    """Where engines are found."""

    mode: DiscoveryMode = Field(default=DiscoveryMode.KUBERNETES, description="kubernetes or static.")
    namespace: str = Field(
        default="", description="Only namespace to look at; empty = all (needs a ClusterRole)."
    )
    kubeconfig: Path | None = Field(
        default=None, description="Kubeconfig file; default: the pod's service account."
    )
    static_endpoints: tuple[StaticEndpointSettings, ...] = Field(
        default=(), max_length=1024, description='JSON list of {"model", "url"}, for mode static.'
    )

    @model_validator(mode="after")
    def _needs_endpoints(self) -> DiscoverySettings:
        if self.mode is DiscoveryMode.STATIC and not self.static_endpoints:
            raise ValueError("mode static needs static_endpoints: a JSON list of objects with model and url")
        return self


class UpstreamSettings(_Group):
    """How engines are asked."""

    max_connections: int = Field(default=2048, ge=1, description="Open connections to engines, all together.")
    max_connections_per_endpoint: int = Field(
        default=1024, ge=1, description="Open connections to one engine."
    )
    max_connection_waiters: int = Field(
        default=1024, ge=0, description="Requests that wait for a connection; the next one fails at once."
    )
    max_head_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        description="Longest head of an engine's answer (status and header fields).",
    )
    keepalive_seconds: float = Field(
        default=2.0,
        gt=0,
        description="How long an idle connection is kept; well below the 5 s after which vLLM closes it.",
    )
    connect_timeout_seconds: float = Field(
        default=3.0, gt=0, description="For opening a connection, and for waiting until one is free."
    )
    try_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        description="One try: until the whole answer, or until the first part of a stream.",
    )
    total_timeout_seconds: float = Field(
        default=900.0, gt=0, description="A request with all its tries and its stream."
    )
    stream_idle_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Longest silence inside a stream, of the engine or of a client that does not read.",
    )
    max_attempts: int = Field(
        default=2, ge=1, le=5, description="Tries per request, each on another replica."
    )
    max_answer_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1024, description="Longest answer that is read into memory."
    )


class RetrySettings(_Group):
    """How much of the traffic retries may be; how often one request may be tried is upstream.max_attempts."""

    budget_ratio: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Retries as a share of a model's requests of the last 10 s; more would turn one slow "
        "replica into an overload of all.",
    )
    budget_min_per_second: float = Field(
        default=3.0,
        ge=0,
        description="Retries a second that are always allowed, for models with few requests.",
    )


class RoutingSettings(_Group):
    """Which replica gets a request."""

    policy: PickPolicy = Field(
        default=PickPolicy.LEAST_OUTSTANDING,
        description="LeastOutstanding, PrefixHash or Session, for models whose resource states none.",
    )
    prefix_bytes: int = Field(
        default=512, ge=16, le=65536, description="PrefixHash: how much of the prompt's start counts."
    )
    session_header: str = Field(
        default="x-session-id",
        pattern=r"^[a-z0-9-]{1,64}$",
        description="Session: header (lower case) that names one; without it the request's `user` does.",
    )
    load_factor: float = Field(
        default=1.25,
        ge=1,
        description="PrefixHash and Session: a replica with more than this multiple of the mean load is "
        "passed over.",
    )
    slow_start_seconds: float = Field(
        default=30.0,
        ge=0,
        description="How long the share of a replica grows that has just become ready; 0 = all at once.",
    )
    slow_start_least: float = Field(
        default=0.1, gt=0, le=1, description="Part of its fair share that a new replica begins with."
    )


class QuarantineScope(StrEnum):
    """What a replica is kept away from because of wrong structured answers."""

    STRUCTURED_ONLY = "StructuredOnly"
    ALL = "All"


class QuarantineSettings(_Group):
    """When a replica is kept away from traffic: from all of it when it does not answer at all."""

    enabled: bool = Field(default=True, description="Whether replicas are ever quarantined.")
    scope: QuarantineScope = Field(
        default=QuarantineScope.STRUCTURED_ONLY,
        description="StructuredOnly: an engine whose structured output is broken still serves the rest.",
    )
    consecutive_failures: int = Field(
        default=3, ge=1, le=100, description="Failures in a row; a wrong but complete answer counts half."
    )
    failure_ratio: float = Field(
        default=0.1, gt=0, le=1, description="Share of failures in the window, with min_requests in it."
    )
    window_seconds: float = Field(default=60.0, ge=1, le=3600, description="Window of the failure ratio.")
    min_requests: int = Field(default=20, ge=1, description="Fewest requests in the window for the ratio.")
    base_seconds: float = Field(
        default=30.0, ge=1, description="The first quarantine; each one after it lasts twice as long."
    )
    max_seconds: float = Field(default=600.0, ge=1, description="The longest quarantine.")
    max_share: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Largest share of a model's replicas that may be quarantined at once; one may always be, "
        "the last one never.",
    )


class WarmupSettings(_Group):
    """What requests get while no replica of their model is ready."""

    max_wait_seconds: float = Field(
        default=10.0, ge=0, description="How long a request waits for a first replica; then 503."
    )
    max_waiting: int = Field(
        default=256, ge=0, description="Requests that may wait, of all models; the next one gets 503 at once."
    )


class ProbeSettings(_Group):
    """The gateway's own cold structured burst: it gates static endpoints and ends quarantines."""

    static_gate: bool = Field(
        default=True,
        description="Static endpoints serve only once they have passed the burst, at the start and after "
        "every time they were away.",
    )
    requests: int = Field(default=24, ge=1, le=1000, description="Requests of a burst.")
    concurrency: int = Field(
        default=24, ge=1, le=1000, description="In flight at once; must exceed the engines' pipeline depth."
    )
    timeout_seconds: float = Field(default=120.0, gt=0, le=3600, description="Limit of a whole burst.")
    retry_seconds: float = Field(
        default=5.0, gt=0, description="First pause after a failed burst on a static endpoint; it doubles."
    )
    max_retry_seconds: float = Field(default=60.0, gt=0, description="Longest such pause.")
    health_seconds: float = Field(
        default=2.0, gt=0, description="How often a static endpoint is looked at, to see that it was away."
    )


class LimitSettings(_Group):
    """What clients may occupy."""

    max_inflight_requests: int = Field(default=1024, ge=1, description="Above it requests are shed with 503.")
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="Longest request body.")
    body_timeout_seconds: float = Field(default=10.0, gt=0, description="For a request body to arrive.")
    retry_after_seconds: int = Field(default=2, ge=1, description="Retry-After of a shed request.")
    no_endpoint_retry_after_seconds: int = Field(
        default=10, ge=1, description="Retry-After while no replica serves: engines start in tens of seconds."
    )


class UnenforcedKeywords(StrEnum):
    """What happens to a request whose schema the model's grammar backend does not fully enforce."""

    WARN = "warn"
    REJECT = "reject"
    VALIDATE = "validate"


class ValidationSettings(_Group):
    """How structured answers are judged."""

    default_mode: ValidationMode = Field(
        default=ValidationMode.ENFORCE, description="For static endpoints and resources that state none."
    )
    default_streaming: StreamDelivery = Field(
        default=StreamDelivery.TRAILING,
        description="For static endpoints: Trailing (streams pass at once, the verdict after them) or Buffer "
        "(they are held until they are judged).",
    )
    default_repair: bool = Field(
        default=False,
        description="For static endpoints: whether a wrong answer is asked for once more, with its violation "
        "told to the model.",
    )
    cached_schemas: int = Field(default=512, ge=1, description="Compiled schemas that are kept.")
    cached_schema_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Length of the texts of all compiled schemas that are kept; compiled ones are larger.",
    )
    assert_formats: bool = Field(
        default=False,
        description="Whether `format` (date, email, ...) is checked in answers. Draft 2020-12 has it as an "
        "annotation by default, and the engines' grammars enforce few formats.",
    )
    heartbeat_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Buffer: how often a client whose stream is held is sent a comment. The first one sends "
        "the status 200, so later failures are error events.",
    )
    max_held_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, description="Buffer: longest stream that is held."
    )
    max_held_bytes_total: int = Field(
        default=256 * 1024 * 1024, ge=1024, description="Buffer: all streams that are held, together."
    )
    max_raw_chars: int = Field(
        default=8192,
        ge=0,
        description="Longest part of a refused answer that is given out when the client asks for it "
        "(x-structuredllm-include-raw: true); 0 = never.",
    )
    unenforced_keywords: UnenforcedKeywords = Field(
        default=UnenforcedKeywords.WARN,
        description="A schema uses keywords that the model's grammar backend does not enforce: warn (in a "
        "header), reject (400), or validate (say nothing, the answer is judged anyway).",
    )


class AdmissionSettings(_Group):
    """What a request may cost an engine; above a bound it is refused with 400 before any engine is asked."""

    max_body_depth: int = Field(
        default=128, ge=1, le=200, description="Nesting of a request body; messages and tools need about 10."
    )
    max_body_nodes: int = Field(default=500_000, ge=1, description="Values in a request body.")
    max_choices: int = Field(
        default=128, ge=1, description="`n` and `best_of`: each choice occupies the engine like a request."
    )
    max_tools: int = Field(default=128, ge=0, description="Tools of one request.")
    refused_fields: tuple[str, ...] = Field(
        default=("/chat_template", "/chat_template_kwargs/chat_template", "/chat_template_kwargs/tokenize"),
        description="JSON pointers of fields that no client may set. A template is a program that the engine "
        "runs for every request.",
    )
    max_schema_depth: int = Field(
        default=64, ge=1, le=200, description="Nesting of a requested schema; vLLM's own limit."
    )
    max_schema_nodes: int = Field(default=20_000, ge=1, description="Values in a requested schema.")
    max_properties: int = Field(default=5_000, ge=0, description="Properties of a schema, all together.")
    max_enum_values: int = Field(
        default=5_000,
        ge=0,
        description="Enum values of a schema, all together: from 10,000 on grammars take seconds to compile.",
    )
    max_enum_chars: int = Field(
        default=100_000, ge=0, description="Characters of all enum and const strings."
    )
    max_string_chars: int = Field(
        default=120_000, ge=0, description="Characters of all names, enum and const strings of a schema."
    )
    max_branches: int = Field(
        default=1_000, ge=0, description="Branches of anyOf, oneOf, allOf, all together."
    )
    max_expanded_nodes: int = Field(
        default=100_000, ge=1, description="Subschemas once every $ref is replaced by what it names."
    )
    max_repetitions: int = Field(
        default=10_000_000, ge=1, description="Product of nested bounds on items, properties and lengths."
    )
    max_pattern_chars: int = Field(default=1_024, ge=0, description="Longest pattern in a schema.")
    max_pattern_depth: int = Field(default=64, ge=0, description="Nested groups of a regular expression.")
    max_pattern_expansion: int = Field(
        default=10_000, ge=1, description="Parts of a regular expression once every {n,m} is written out."
    )
    max_regex_chars: int = Field(default=4_096, ge=0, description="Longest `regex` that may be asked for.")
    max_grammar_chars: int = Field(
        default=65_536, ge=0, description="Longest `grammar` that may be asked for."
    )
    max_grammar_depth: int = Field(default=200, ge=0, description="Nested brackets of such a grammar.")
    remembered_parts: int = Field(
        default=4_096, ge=1, description="Schemas that have passed and are known again by their hash."
    )

    @property
    def limits(self) -> Limits:
        """The bounds as the checks take them."""
        return Limits(**self.model_dump(exclude={"remembered_parts"}))


class Settings(BaseSettings):
    """The whole configuration of one gateway process."""

    model_config = SettingsConfigDict(
        env_prefix="STRUCTUREDLLM_GATEWAY_",
        env_nested_delimiter="__",
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    upstream: UpstreamSettings = UpstreamSettings()
    retries: RetrySettings = RetrySettings()
    routing: RoutingSettings = RoutingSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    warmup: WarmupSettings = WarmupSettings()
    probe: ProbeSettings = ProbeSettings()
    limits: LimitSettings = LimitSettings()
    validation: ValidationSettings = ValidationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level logged."
    )
