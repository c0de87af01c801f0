"""Programs built from the pinned Go modules below `modules/`, kept in the cache under a hash of their inputs.

Owns the build command and its cache. One build per module, under a lock, so that two tests that need the same
program share one build. Imports errors, processes and progress.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import CommandError, MissingToolError
from tools.cluster.processes import run, tail
from tools.cluster.progress import say, step
from tools.paths import cache_dir

MODULES_DIR = Path(__file__).resolve().parent / "modules"
BUILD_TIMEOUT_SECONDS = 2400.0
REPORT_SECONDS = 20.0
# A running cluster may still use the builds before the newest one.
KEPT_BUILDS = 3
KUBERNETES_VERSION = "v1.36.3"


@dataclass(frozen=True)
class Module:
    """One pinned Go module and the programs that it builds.

    Attributes:
        name: Folder below `modules/`.
        tools: Program name -> Go package.
        ldflags: Linker flags beyond -s -w.
        first_build: What a person waits for with a cold Go cache on 2 cores, in words.
    """

    name: str
    tools: dict[str, str]
    ldflags: str = ""
    first_build: str = "about a minute"


_VERSION = "k8s.io/component-base/version"

MODULES = (
    Module(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
                *("kubelet", "kubectl", "kube-proxy"),
            )
        },
        f"-X {_VERSION}.gitVersion={KUBERNETES_VERSION} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36",
        "10 to 15 minutes",
    ),
    Module(
        "containerd",
        {
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        first_build="about 2 minutes",
    ),
    Module("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    Module("helm-unittest", {"helm-unittest": "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"}),
    Module("coredns", {"coredns": "structuredllm.io/tools/cluster/coredns"}, first_build="about 2 minutes"),
    Module("lws", {"lws": "sigs.k8s.io/lws/cmd"}, first_build="about 2 minutes"),
    Module("pause", {"pause": "structuredllm.io/tools/cluster/pause"}, first_build="a few seconds"),
)


def module_of(tool: str) -> Module:
    """Return the module that builds a tool.

    Raises:
        MissingToolError: No module does.
    """
    for module in MODULES:
        if tool in module.tools:
            return module
    known = ", ".join(sorted(name for module in MODULES for name in module.tools))
    raise MissingToolError(f"no pinned module builds {tool!r}; known tools: {known}")


def go_program() -> str:
    """Return the Go command.

    Raises:
        MissingToolError: There is none.
    """
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise MissingToolError(
            "Go is missing: install Go 1.26.6 or newer (https://go.dev/dl) and put it in PATH"
        )
    return found


def go_environment() -> dict[str, str]:
    """Return the environment of a build: static programs, the installed Go unless the user chose another."""
    return {"GOTOOLCHAIN": "local", **os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}


def build_argv(go: str, module: Module, output: Path) -> list[str]:
    """Return the build command.

    With several packages Go names the programs after their folders; with one package we choose the name.
    """
    target = f"{output}/" if len(module.tools) > 1 else str(output / next(iter(module.tools)))
    ldflags = f"-s -w {module.ldflags}".strip()
    return [go, "build", "-v", "-trimpath", "-ldflags", ldflags, "-o", target, *module.tools.values()]


def module_digest(module: Module, go_version: str, modules_dir: Path = MODULES_DIR) -> str:
    """Return a hash of everything that decides what a build gives."""
    digest = hashlib.sha256()
    for path in sorted((modules_dir / module.name).iterdir()):
        if path.suffix in (".mod", ".sum", ".go"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join([go_version, *build_argv("go", module, Path("out"))]).encode())
    return digest.hexdigest()[:16]


def _place(module: Module, go: str) -> Path:
    return cache_dir("bin") / f"{module.name}-{module_digest(module, _go_version(go))}"


@functools.cache
def _go_version(go: str) -> str:
    told = run([go, "env", "GOVERSION", "GOARCH"], what="ask Go for its version", timeout_seconds=30)
    return " ".join(told.split())


def ensure_tool(name: str) -> Path:
    """Return the program `name` (kubectl, helm, kube-apiserver, ...), built first when the cache lacks it.

    Raises:
        MissingToolError: The name is unknown, or Go is missing.
        CommandError: The build failed; the error names the log.
    """
    module = module_of(name)
    go = go_program()
    program = _place(module, go) / name
    folder = program.parent
    if not program.is_file():
        with locked(cache_dir("bin") / f".{module.name}.lock", f"another build of {module.name}"):
            if not program.is_file():
                _build(go, module, folder)
    return program


def cached_tool(name: str) -> Path | None:
    """Return the program `name` in its newest build that the cache has; never build.

    For taking things down, which must not wait for a compiler.
    """
    builds = sorted(
        cache_dir("bin").glob(f"{module_of(name).name}-*/{name}"), key=lambda path: path.stat().st_mtime
    )
    return builds[-1] if builds else None


def prune_builds(folder: Path, module: str, keep: int = KEPT_BUILDS) -> None:
    """Remove what earlier builds of a module left: half-made ones, and all but the newest `keep`."""
    for half in folder.glob(f".build-{module}@*"):
        shutil.rmtree(half, ignore_errors=True)
    # The digest has no dash, so `helm-*` does not take builds of `helm-unittest`.
    builds = [path for path in folder.glob(f"{module}-*") if "-" not in path.name[len(module) + 1 :]]
    for old in sorted(builds, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def _build(go: str, module: Module, folder: Path) -> None:
    prune_builds(folder.parent, module.name)
    log = cache_dir("logs") / f"build-{module.name}.log"
    title = f"build {module.name} from its pinned Go module (the first time {module.first_build})"
    with step(title), tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".build-{module.name}@") as name:
        output = Path(name) / "out"
        output.mkdir()
        argv = build_argv(go, module, output)
        begin = time.monotonic()
        with log.open("w") as stream:
            process = subprocess.Popen(
                argv,
                cwd=MODULES_DIR / module.name,
                env=go_environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            try:
                code = _wait_for_build(process, module, log, begin)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if code != 0:
            raise CommandError(build_failure(module.name, tail(log, lines=200)), log=log)
        for tool in module.tools:
            if not (output / tool).is_file():
                raise CommandError(f"the build of {module.name} made no {tool}", log=log)
        output.replace(folder)


def _wait_for_build(process: subprocess.Popen[bytes], module: Module, log: Path, begin: float) -> int:
    while True:
        try:
            return process.wait(timeout=REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - begin
            if spent > BUILD_TIMEOUT_SECONDS:
                raise CommandError(f"the build of {module.name} took over {spent:.0f} s", log=log) from None
            with log.open() as stream:
                compiled = sum(1 for line in stream if not line.startswith("go: "))
            say(f"cluster:   {module.name}: {spent:.0f} s, {compiled} packages compiled")


def build_failure(module: str, told: str) -> str:
    """Return the cause of a failed build in one line, with what to do where we know it."""
    # With -v Go also prints the packages that it compiles, one bare path a line, and "# package" headings.
    causes = [line for line in told.splitlines() if not re.fullmatch(r"#.*|[\w./~-]+", line.strip())]
    last = causes[-1].strip() if causes else "the compiler gave no reason"
    if re.search(r"requires go >= ", told):
        return f"build {module}: {last}; install that Go, or set GOTOOLCHAIN=auto so that Go fetches it"
    return f"build {module}: {last}"


def module_source(tool: str, package: str) -> Path:
    """Return the folder of the module `package` in Go's module cache, for files beside its code.

    Raises:
        CommandError: Go cannot bring it.
    """
    told = run(
        [go_program(), "mod", "download", "-json", package],
        what=f"find the source of {package}",
        timeout_seconds=600,
        env=go_environment(),
        cwd=MODULES_DIR / module_of(tool).name,
    )
    return Path(str(json.loads(told)["Dir"]))


@contextmanager
def locked(path: Path, holder: str, timeout_seconds: float = BUILD_TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold an exclusive file lock; say so when somebody else holds it, and give up at the deadline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        deadline = time.monotonic() + timeout_seconds
        told = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say(f"cluster: waiting for {holder} (lock {path})")
                    told = True
                if time.monotonic() > deadline:
                    raise CommandError(f"{holder} still holds {path} after {timeout_seconds:.0f} s") from None
                time.sleep(0.5)
        yield
