"""Do compile jobs with xgrammar, and parse llguidance's grammars.

xgrammar's package imports torch and transformers, which would cost every fork server seconds and hundreds of
megabytes and leave threads behind. The compiler needs neither, so the package's own `__init__` is passed by.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import time
import types
from typing import Any

from structuredllm_engine_patches.compiling.jobs import CompileJob, Kind, Task
from structuredllm_engine_patches.compiling.priority import compile_threads, usable_cpus
from structuredllm_engine_patches.compiling.trial import try_out
from structuredllm_engine_patches.compiling.worker import RunJob

MAX_THREADS = 8
"""As many as vLLM gives its compiler."""

MAX_HERE_BYTES = 256 << 20
"""Memory of a compilation that may be repeated in the caller's process."""

TRANSFER_SECONDS_PER_BYTE = 0.15e-6

_NOT_NEEDED = ("torch", "sentencepiece", "tiktoken")


def load(tokenizer: bytes) -> RunJob:
    """Return what does the jobs.

    Args:
        tokenizer: xgrammar's serialized tokenizer; empty for a pool that only parses.
    """
    modules = _import_light()
    compiler = None
    if tokenizer:
        info = modules.tokenizer_info.TokenizerInfo.deserialize_json(tokenizer.decode())
        threads = compile_threads(usable_cpus())
        # The engine keeps what was compiled; a cache here would only grow.
        compiler = modules.compiler.GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def run(job: CompileJob) -> bytes | None:
        if job.task is Task.PARSE:
            _parse(modules.grammar, job)
            return b""
        if compiler is None:
            raise RuntimeError("this pool has no tokenizer: it can parse and not compile")
        reset_peak()
        before, started = peak_bytes(), time.perf_counter()
        compiled = compile_job(compiler, modules.grammar, job)
        seconds, grown = time.perf_counter() - started, peak_bytes() - before
        try_out(compiled)
        if grown < MAX_HERE_BYTES and transfer_seconds(compiled) > seconds:
            return None
        return str(compiled.serialize_json()).encode()

    return run


def transfer_seconds(compiled: Any) -> float:
    """Return about how long it takes to write a compiled grammar as JSON and to read it again.

    xgrammar 0.2.8 writes the automaton of the whole grammar once for every rule, so the text grows with the
    square of the grammar: 41 MB for 30 objects with a string of at most 200 characters each, which compile
    in half a second. Measured for 10 grammars with vocabularies of 2,048 to 130,000 tokens: the automaton's
    text is about 2.5 times the grammar's, the masks' 1.5 times what they take in memory, and a megabyte
    takes 0.1 to 0.15 s.
    """
    text = str(compiled.grammar)
    size: float = 2.5 * len(text) * text.count("::=") + 1.5 * compiled.memory_size_bytes
    return size * TRANSFER_SECONDS_PER_BYTE


def reset_peak() -> None:
    """Let `peak_bytes` start anew."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes() -> int:
    """Return the most resident memory that this process has had."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM")), 0)


def _parse(grammar: Any, job: CompileJob) -> None:
    options = json.loads(job.options)
    match job.kind:
        case Kind.JSON_SCHEMA:
            grammar.Grammar.from_json_schema(job.spec, **options)
        case Kind.REGEX:
            grammar.Grammar.from_regex(job.spec, **options)
        case Kind.EBNF:
            grammar.Grammar.from_ebnf(job.spec, **options)
        case Kind.LARK:
            grammar.Grammar.from_lark(job.spec, **options)
        case Kind.STRUCTURAL_TAG:
            grammar.Grammar.from_structural_tag(job.spec)
        case Kind.STRUCTURAL_TAG_TRIGGERS:
            grammar.Grammar.from_structural_tag(*_older_tags(grammar, job.spec))
        case Kind.GUIDANCE:
            llguidance = importlib.import_module("llguidance")
            error = llguidance.LLMatcher.validate_grammar(job.spec, None)
            if error:
                raise ValueError(error)


def compile_job(compiler: Any, grammar: Any, job: CompileJob) -> Any:
    """Return the compiled grammar of a job.

    Args:
        compiler: xgrammar's `GrammarCompiler`.
        grammar: xgrammar's module with `StructuralTagItem`.
        job: the job.
    """
    options = json.loads(job.options)
    match job.kind:
        case Kind.JSON_SCHEMA:
            if options.get("separators") is not None:
                options["separators"] = tuple(options["separators"])
            return compiler.compile_json_schema(job.spec, **options)
        case Kind.REGEX:
            return compiler.compile_regex(job.spec)
        case Kind.EBNF:
            return compiler.compile_grammar(job.spec)
        case Kind.LARK:
            return compiler.compile_lark(job.spec)
        case Kind.STRUCTURAL_TAG:
            return compiler.compile_structural_tag(job.spec)
        case Kind.STRUCTURAL_TAG_TRIGGERS:
            return compiler.compile_structural_tag(*_older_tags(grammar, job.spec))
        case Kind.GUIDANCE:
            raise ValueError("llguidance's grammars are not compiled by xgrammar")


def _older_tags(grammar: Any, spec: str) -> tuple[list[Any], list[str]]:
    parts = json.loads(spec)
    return [grammar.StructuralTagItem(**tag) for tag in parts["tags"]], parts["triggers"]


def _import_light() -> types.SimpleNamespace:
    """Import xgrammar's compiler without torch and transformers; the whole package where that fails."""
    names = ("grammar", "compiler", "tokenizer_info")
    spec = importlib.util.find_spec("xgrammar")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("xgrammar is not installed here")
    stand_ins: dict[str, Any] = dict.fromkeys(_NOT_NEEDED)
    stand_ins["transformers"] = _transformers_names()
    package = importlib.util.module_from_spec(
        importlib.machinery.ModuleSpec("xgrammar", None, is_package=True)
    )
    package.__path__ = list(spec.submodule_search_locations)
    stand_ins["xgrammar"] = package
    before = {name: sys.modules.get(name) for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        for name in ("load_binding", "exception", *names):
            importlib.import_module(f"xgrammar.{name}")
    except (ImportError, AttributeError):
        for name in [n for n in sys.modules if n == "xgrammar" or n.startswith("xgrammar.")]:
            del sys.modules[name]
        for name in stand_ins:
            sys.modules.pop(name, None)
        sys.modules.update({name: module for name, module in before.items() if module is not None})
        importlib.import_module("xgrammar")
    return types.SimpleNamespace(**{n: importlib.import_module(f"xgrammar.{n}") for n in names})


def _transformers_names() -> types.ModuleType:
    stand_in = types.ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(stand_in, name, type(name, (), {}))
    return stand_in
