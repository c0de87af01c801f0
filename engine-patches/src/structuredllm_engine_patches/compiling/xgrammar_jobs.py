"""Do compile jobs with xgrammar; imported in the fork server only.

xgrammar's package imports torch and transformers, which would cost every fork server seconds and hundreds of
megabytes and leave threads behind. The compiler needs neither, so the package's own `__init__` is passed by.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from typing import Any

from structuredllm_engine_patches.compiling.jobs import CompileJob, Kind, Task
from structuredllm_engine_patches.compiling.worker import RunJob

MAX_THREADS = 8
"""As many as vLLM gives its compiler."""

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
        threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0))))
        # The engine keeps what was compiled; a cache here would only grow.
        compiler = modules.compiler.GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def run(job: CompileJob) -> bytes:
        if job.task is Task.PARSE:
            _parse(modules.grammar, job)
            return b""
        if compiler is None:
            raise RuntimeError("this pool has no tokenizer: it can parse and not compile")
        return str(_compile(compiler, modules.grammar, job).serialize_json()).encode()

    return run


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


def _compile(compiler: Any, grammar: Any, job: CompileJob) -> Any:
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
