"""The fork server: a small process with the compiler loaded, which forks a worker whenever one is wanted.

`python -P -m structuredllm_engine_patches.compiling.fork_server --control-fd N ...`. A worker costs a few
milliseconds and shares the tokenizer's memory, so killing one is cheap. It has a single thread: forking is
safe only then. It ends when its parent does, which closes the control socket, and its workers end with it.

Control messages: `load` (blob: what the compiler needs; answered by `loaded`), `fork` (with the worker's end
of a socket; answered by `forked`), `kill`. `exited` tells of a worker's end, however it came.
"""

import argparse
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from structuredllm_engine_patches.compiling import frames, worker

Load = Callable[[bytes], worker.RunJob]
"""Makes what does the jobs from the blob of the `load` message."""


class ForkServer:
    """One fork server.

    Args:
        control: its end of the control socket.
        load: see `Load`.
        memory_bytes: see `worker.confine`.
        max_result_bytes: see `worker.serve`.
    """

    def __init__(
        self, control: socket.socket, load: Load, *, memory_bytes: int, max_result_bytes: int
    ) -> None:
        self._control = control
        self._load = load
        self._memory_bytes = memory_bytes
        self._max_result_bytes = max_result_bytes
        self._run_job: worker.RunJob | None = None
        self._children: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._passed: list[int] = []

    def run(self) -> None:
        """Serve until the other side closes the control socket; no worker is left afterwards."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        reader = frames.FrameReader()
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                data, passed, _, _ = socket.recv_fds(self._control, 1 << 16, 8)
                if not data:
                    break
                self._passed += passed
                for header, blob in reader.feed(data):
                    self._handle(header, blob)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _handle(self, header: dict[str, Any], blob: bytes) -> None:
        match header["op"]:
            case "load":
                self._run_job = self._load(blob)
                gc.collect()
                gc.freeze()
                self._tell({"op": "loaded", "threads": len(os.listdir("/proc/self/task"))})
            case "fork":
                self._fork(header["worker"], self._passed.pop(0), slow=header["slow"])
            case "kill":
                pid = self._pids.get(header["worker"])
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

    def _fork(self, worker_id: int, descriptor: int, *, slow: bool) -> None:
        own_pid = os.getpid()
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self._children[pid] = worker_id
            self._pids[worker_id] = pid
            self._tell({"op": "forked", "worker": worker_id, "pid": pid})
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for other in self._passed:
                os.close(other)
            worker.confine(own_pid, self._memory_bytes, slow=slow)
            if self._run_job is not None:
                worker.serve(socket.socket(fileno=descriptor), self._run_job, self._max_result_bytes)
                status = 0
        finally:
            # Nothing of the fork server may run in the fork, whatever happened to it.
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker_id = self._children.pop(pid)
            del self._pids[worker_id]
            self._tell({"op": "exited", "worker": worker_id, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, header: dict[str, Any]) -> None:
        self._control.sendall(frames.encode(header))


def find(path: str) -> Any:
    """Return the object at `module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a fork server on an inherited control socket."""
    parser = argparse.ArgumentParser(
        prog="python -m structuredllm_engine_patches.compiling.fork_server", description=__doc__
    )
    parser.add_argument("--control-fd", type=int, required=True, help="inherited end of the control socket")
    parser.add_argument("--load", required=True, help="module:function that makes what does the jobs")
    parser.add_argument("--memory-bytes", type=int, required=True, help="memory that a worker may take")
    parser.add_argument("--max-result-bytes", type=int, required=True, help="bound of a result")
    arguments = parser.parse_args(argv)
    # Ctrl-C in a terminal reaches the whole process group; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=arguments.control_fd) as control:
        ForkServer(
            control,
            find(arguments.load),
            memory_bytes=arguments.memory_bytes,
            max_result_bytes=arguments.max_result_bytes,
        ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
