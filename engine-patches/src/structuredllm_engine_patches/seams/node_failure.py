"""p030: the nodes of a multi-node engine end together.

Upstream (vLLM 0.32): steps travel to the other nodes over ZeroMQ, which reconnects for ever. A node whose
leader is gone waits for its next step; a leader whose follower is gone waits for its answer, up to
`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` (300), and not at all noticing while idle. The sockets' own events tell
both sides within milliseconds. A headless node that lost a rank ends with code 0, as if all was well.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.failure.cause import Cause, Kind
from structuredllm_engine_patches.failure.leave import Departure, End, last_line, leave_now
from structuredllm_engine_patches.failure.note import FailureNote
from structuredllm_engine_patches.failure.peers import Event, Peers
from structuredllm_engine_patches.seams.rank_failure import name_of

Method = Callable[..., None]


def build_post_init(original: Method, note: FailureNote, logger: logging.Logger) -> Method:
    """Return the replacement of `MultiprocExecutor._post_init_executor`: the leader watches its followers.

    Upstream calls it when every rank of every node has connected.
    """

    @wraps(original)
    def _post_init_executor(executor: Any) -> None:
        original(executor)
        queue = executor.rpc_broadcast_mq
        if queue is None or queue.n_remote_reader == 0:
            return
        reference = weakref.ref(executor)

        def on_lost() -> None:
            found = reference()
            if found is not None:
                _fail(found, note, logger)

        watch_peers(queue.remote_socket, on_lost)

    return _post_init_executor


def build_busy_loop(original: Method, note: FailureNote, logger: logging.Logger) -> Method:
    """Return the replacement of `WorkerProc.worker_busy_loop`: a rank on another node watches the leader."""

    @wraps(original)
    def worker_busy_loop(proc: Any) -> None:
        queue = proc.rpc_broadcast_mq
        if queue is not None and queue.remote_socket is not None:
            who = name_of(proc.rank, proc.worker.vllm_config.parallel_config)

            def on_lost() -> None:
                note.write(Cause(Kind.LOST, f"{who}: the connection to the engine's leader broke"))
                logger.critical("%s lost the engine's leader: this process ends", who)
                leave_now(logger)

            watch_peers(queue.remote_socket, on_lost)
        original(proc)

    return worker_busy_loop


def build_monitor(original: Method, note: FailureNote, logger: logging.Logger, end: End = os._exit) -> Method:
    """Return the replacement of `MultiprocExecutor.start_worker_monitor`.

    With `inline=True` it is the main loop of a headless node and returns when the node's executor is over:
    the process then ends with a code that says failure and with the cause as its last line. At once: the
    interpreter's own way out takes seconds, and has nothing left to do.
    """

    def last_words() -> str:
        cause = note.read()
        note.remove()
        reason = cause.text if cause else "a rank is gone"
        return last_line("this node of the engine", reason)

    @wraps(original)
    def start_worker_monitor(executor: Any, inline: bool = False) -> None:
        original(executor, inline=inline)
        if inline and executor.is_failed:
            Departure(last_words, logger, end).leave()

    return start_worker_monitor


def watch_peers(socket: Any, on_lost: Callable[[], None]) -> None:
    """Call `on_lost` once, from a thread, when a peer of a ZeroMQ socket is gone; all have to be connected.

    To be called in the thread that uses the socket. The watching ends with the socket or its context.
    """
    import zmq

    address = f"inproc://structuredllm-peers-{id(socket)}"
    socket.monitor(address, zmq.EVENT_ALL)
    ear = socket.context.socket(zmq.PAIR)
    ear.linger = 0
    ear.connect(address)
    threading.Thread(target=_listen, args=(ear, on_lost), name="structuredllm-peers", daemon=True).start()


def _listen(ear: Any, on_lost: Callable[[], None]) -> None:
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    events = {
        zmq.EVENT_ACCEPTED: Event.CAME,
        zmq.EVENT_CONNECTED: Event.CAME,
        zmq.EVENT_DISCONNECTED: Event.GONE,
    }
    peers = Peers()
    lost = False
    with ear:
        while not lost:
            try:
                message = recv_monitor_message(ear)
            except zmq.ZMQError:
                return
            if message["event"] == zmq.EVENT_MONITOR_STOPPED:
                return
            event = events.get(message["event"])
            lost = event is not None and peers.is_lost(event, int(message["value"]))
    on_lost()


def _fail(executor: Any, note: FailureNote, logger: logging.Logger) -> None:
    """End the leader's executor as upstream's monitor does when a rank on its own node is gone."""
    if getattr(executor, "shutting_down", False):
        return
    note.write(Cause(Kind.LOST, "the connection to a rank on another node broke"))
    logger.error("lost a rank on another node, shutting down executor")
    executor.is_failed = True
    executor.shutdown()
    callback, executor.failure_callback = executor.failure_callback, None
    if callback is not None:
        callback()
