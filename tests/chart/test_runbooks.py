"""Each alert has a runbook with the same four parts, and no runbook is left over."""

import re
import shlex
from pathlib import Path

import pytest

from tests.chart.support import RUNBOOKS, all_alerts

SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
COMMANDS = ("kubectl", "curl", "structuredllm-probe")
PAGES = sorted(RUNBOOKS.glob("*.md"))


def test_alerts_and_runbooks_are_the_same_set() -> None:
    assert {page.stem for page in PAGES} == set(all_alerts())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_runbook_has_its_parts_and_commands_to_paste(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    assert blocks
    for line in (line.strip() for block in blocks for line in block.splitlines() if line.strip()):
        assert shlex.split(line)[0] in COMMANDS, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_runbooks_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+\.md)\)", page.read_text()):
        assert (RUNBOOKS / target).exists(), target
