"""The key file: a changed one takes effect by itself, a broken one changes nothing and is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from structuredllm_gateway.keys.file import KeyFile
from structuredllm_gateway.telemetry.metrics import Metrics
from structuredllm_gateway.upstream.endpoints import Snapshot
from tests.unit.gateway.support import capturing_log, until
from tests.unit.gateway.test_keys import OTHER_KEY, entry


def _content(*entries: Mapping[str, Any]) -> str:
    return json.dumps({"keys": entries})


def test_the_kubelet_s_symlink_swap_is_seen(tmp_path: Path) -> None:
    for version, keys in (("v1", [entry("old")]), ("v2", [entry("new", OTHER_KEY)])):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.yaml").write_text(_content(*keys))
    data, path = tmp_path / "..data", tmp_path / "keys.yaml"
    data.symlink_to("v1")
    path.symlink_to("..data/keys.yaml")
    file = KeyFile(path, capturing_log([]))
    assert file.table.names == {"old"}
    (tmp_path / "..data_tmp").symlink_to("v2")
    (tmp_path / "..data_tmp").replace(data)
    file.check()
    assert file.table.names == {"new"}


def test_a_broken_or_missing_file_keeps_the_old_keys_and_is_seen(tmp_path: Path) -> None:
    path, lines = tmp_path / "keys.json", list[Mapping[str, Any]]()
    path.write_text(_content(entry("old")))
    file = KeyFile(path, capturing_log(lines))
    metrics = Metrics(Snapshot)
    metrics.key_file = file

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"structuredllm_gateway_{name}")

    assert (value("keys"), value("key_file_errors_total"), value("key_file_stale")) == (1, 0, 0)
    path.write_text("{")
    file.check()
    file.check()
    assert file.table.names == {"old"}
    assert (value("keys"), value("key_file_errors_total"), value("key_file_stale")) == (1, 1, 1)
    path.unlink()
    file.check()
    assert (set(file.table.names), value("key_file_errors_total")) == ({"old"}, 2)
    path.write_text(_content())
    file.check()
    assert (value("keys"), value("key_file_errors_total"), value("key_file_stale")) == (0, 2, 0)
    assert [line["event"] for line in lines] == [
        "key_file_loaded",
        "key_file_rejected",
        "key_file_rejected",
        "key_file_loaded",
    ]


def test_a_file_that_is_not_there_at_first_is_taken_when_it_comes(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys", capturing_log([]))
    assert (file.table.names, file.is_stale) == (frozenset(), True)
    (tmp_path / "keys").write_text(_content(entry()))
    file.check()
    assert (set(file.table.names), file.is_stale) == ({"team"}, False)


async def test_the_file_is_looked_at_after_every_pause(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(_content())
    pauses: asyncio.Queue[None] = asyncio.Queue()
    file = KeyFile(path, capturing_log([]))
    running = asyncio.create_task(file.run(pauses.get))
    path.write_text(_content(entry()))
    await asyncio.sleep(0)
    assert not file.table.names
    pauses.put_nowait(None)
    await until(lambda: file.table.names == {"team"})
    running.cancel()
