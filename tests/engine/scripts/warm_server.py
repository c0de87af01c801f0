"""Runs in the engine's environment: imports what `vllm serve` imports, then forks itself for each engine.

An engine's first twenty seconds of CPU are imports. A fork of a process that has made them begins where
`vllm serve` begins to look at its arguments: no plugin is loaded and no patch applied before that.

Standard input is a socket. Requests and replies are lines of JSON:
    {"argv": [...], "env": {...}, "log": path} -> {"started": pid}
    (a child ended) -> {"ended": pid, "status": exit status, negative for a signal}
When the other end is gone, all children are killed.
"""

import json
import os
import select
import signal
import socket
import sys
from typing import Any

POLL_SECONDS = 0.05


def preload() -> None:
    """Import the modules that the command line of vLLM imports by itself."""
    import vllm.entrypoints.cli.benchmark.main
    import vllm.entrypoints.cli.launch
    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.openai
    import vllm.entrypoints.cli.run_batch
    import vllm.entrypoints.cli.serve  # noqa: F401
    from setproctitle import getproctitle

    # It finds the memory of the title behind that of the environment, which a fork replaces.
    getproctitle()


def become(order: dict[str, Any]) -> None:
    """Turn this forked process into the one that was ordered: session, environment, output, arguments."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.argv = ["vllm", *order["argv"]]


def reap(channel: socket.socket, children: set[int], *, wait: bool = False) -> None:
    """Tell of children that have ended."""
    while children:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        if not wait:
            reply(channel, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def reply(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def serve(channel: socket.socket) -> bool:
    """Serve until the other end is gone; True in a child, which is to go on as an engine."""
    children: set[int] = set()
    pending = b""
    while True:
        if select.select([channel], [], [], POLL_SECONDS)[0]:
            received = channel.recv(1 << 16)
            if not received:
                break
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    channel.close()
                    become(order)
                    return True
                children.add(pid)
                reply(channel, {"started": pid})
        reap(channel, children)
    for pid in children:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    reap(channel, children, wait=True)
    return False


if __name__ == "__main__":
    # The terminal's Ctrl-C is for the tests, which then close the socket.
    os.setpgrp()
    control = socket.socket(fileno=os.dup(0))
    preload()
    reply(control, {"ready": True})
    if serve(control):
        from vllm.entrypoints.cli.main import main

        sys.exit(main())
