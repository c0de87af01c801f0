"""One program of the cluster and bringing it to the wanted state: leave it, wait for it, or start it anew.

Owns when a running program counts as current. Imports packages, processes, progress and settings.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import processes
from tools.cluster.packages import SEARCH_PATH
from tools.cluster.progress import step
from tools.cluster.settings import Places

LOG_LIMIT_BYTES = 20_000_000


@dataclass(frozen=True)
class Component:
    """One program of the cluster.

    Attributes:
        name: Its name in pid file and log.
        argv: Its command line.
        inputs: Digest of the files that it reads once, at its start.
        ready: Returns None when it serves, else what is missing.
        timeout_seconds: How long it may take.
    """

    name: str
    argv: list[str]
    inputs: str
    ready: Callable[[], str | None]
    timeout_seconds: float = 90.0

    @property
    def digest(self) -> str:
        """Changes when a running process is no longer what is wanted."""
        return processes.argv_digest(self.argv, self.inputs)


def component_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return a component's environment: its own folder first in PATH, and no proxy between the components."""
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    kept = {name: value for name, value in environ.items() if name.lower() not in proxies}
    return {**kept, "PATH": f"{folder}{os.pathsep}{SEARCH_PATH}"}


def ensure_component(component: Component, places: Places) -> bool:
    """Start a component unless it runs as wanted, and wait until it serves.

    Returns:
        Whether it had to be started.

    Raises:
        StartError: It ended or did not serve in time; with the tail of its log.
    """
    pidfile, log = places.pidfile(component.name), places.log(component.name)
    identity = processes.running(pidfile)
    if identity is not None and identity.digest == component.digest and component.ready() is None:
        return False
    with step(f"start {component.name}"):
        if identity is not None and identity.digest != component.digest:
            processes.stop(pidfile)
            identity = None
        if identity is None:
            processes.kill_strays(component.name, places.state)
            if log.is_file() and log.stat().st_size > LOG_LIMIT_BYTES:
                log.replace(log.with_suffix(".log.1"))
            processes.start(
                component.argv,
                log=log,
                pidfile=pidfile,
                digest=component.digest,
                env=component_environment(os.environ, Path(component.argv[0]).parent),
            )
        processes.wait_until(
            component.ready,
            what=component.name,
            timeout_seconds=component.timeout_seconds,
            pidfile=pidfile,
            log=log,
        )
    return True
