"""What a connection relies on inside of uvicorn; an update that changes it needs a look at the protocol."""

from __future__ import annotations

import inspect

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import Server


def test_the_version_is_one_that_was_looked_at() -> None:
    assert uvicorn.__version__.startswith("0.54."), "read server/protocol.py beside the new httptools_impl.py"


@pytest.mark.parametrize(
    "name",
    [
        *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing"),
        *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
        *("on_response_complete", "timeout_keep_alive_handler", "shutdown", "_unset_keepalive_if_required"),
    ],
)
def test_the_methods_that_are_extended_exist(name: str) -> None:
    assert callable(getattr(httptools_impl.HttpToolsProtocol, name))


def test_the_state_that_is_read_and_set_exists() -> None:
    made = inspect.getsource(httptools_impl.HttpToolsProtocol.__init__)
    for name in ("parser", "loop", "cycle", "flow", "pipeline", "transport", "timeout_keep_alive_task"):
        assert f"self.{name}" in made
    cycle = inspect.getsource(httptools_impl.RequestResponseCycle)
    for name in ("disconnected", "keep_alive", "message_event", "response_complete", "response_started"):
        assert f"self.{name} = " in cycle
    assert "self.read_paused" in inspect.getsource(flow_control.FlowControl.__init__)


def test_an_answer_uses_of_its_transport_what_we_stand_in_for() -> None:
    cycle = inspect.getsource(httptools_impl.RequestResponseCycle)
    used = {part.split("(")[0] for part in cycle.split("self.transport.")[1:]}
    assert used == {"write", "close", "is_closing"}


def test_the_protocol_is_called_as_we_expect() -> None:
    assert "config.http_protocol_class(" in inspect.getsource(Server.startup)
    parameters = list(inspect.signature(httptools_impl.HttpToolsProtocol.__init__).parameters)
    assert parameters == ["self", "config", "server_state", "app_state", "_loop"]


def test_an_upgrade_is_not_a_parser_error() -> None:
    assert not issubclass(httptools.HttpParserUpgrade, httptools.HttpParserError)
