"""Write `PATCHES.md` from the register: `python -m structuredllm_engine_patches.render [--check] [PATH]`."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from structuredllm_engine_patches import compat
from structuredllm_engine_patches.patch import Fit, Patch
from structuredllm_engine_patches.registry import PATCHES

HEADER = """\
# Patches

Generated from the register (`registry.py`) by `python -m structuredllm_engine_patches.render`; do not edit.

| Patch | What it does | vLLM | Where |
|---|---|---|---|
"""
WIDTH = 110


def default_path() -> Path:
    """Return the place of PATCHES.md in the source tree."""
    return Path(__file__).resolve().parents[2] / "PATCHES.md"


def render_patches(patches: Sequence[Patch]) -> str:
    """Return the page as Markdown."""
    rows = "".join(
        f"| `{p.id}` | {p.title} | {', '.join(p.vllm_versions)} | {', '.join(p.processes)} |\n"
        for p in patches
    )
    return HEADER + rows + "".join(_render_section(p) for p in patches)


def _render_section(patch: Patch) -> str:
    applied = "under every policy" if patch.always else "with the policies `required` and `optional`"
    return (
        f"\n## {patch.id}\n\n"
        f"{textwrap.fill(patch.why, WIDTH)}\n\n"
        f"- Applied: {applied}\n"
        f"- Upstream: <{patch.upstream}>\n"
        f"- What upstream would have to change: {patch.upstream_change}\n"
        f"- Remove when: {patch.remove_when}\n"
    ) + "".join(_render_fit(version, fit) for version, fit in patch.fits.items())


def _render_fit(version: str, fit: Fit) -> str:
    targets = ", ".join(f"`{target}`" for target in fit.targets)
    fingerprints = "".join(f"  - `{path}`: `{value}`\n" for path, value in fit.fingerprints.items())
    return f"- vLLM {version} replaces {targets}\n  and relies on this source (fingerprints):\n{fingerprints}"


def render_fingerprints(patches: Sequence[Patch], version: str) -> str:
    """Return the fingerprints that the register's paths have in the installed vLLM, one line each."""
    paths = sorted({path for p in patches if version in p.fits for path in p.fits[version].fingerprints})
    return "".join(f"{path} {compat.fingerprint(compat.resolve(path))}\n" for path in paths)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with `--check` say whether the committed one is current (exit code 1 if not)."""
    parser = argparse.ArgumentParser(
        prog="python -m structuredllm_engine_patches.render", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    parser.add_argument(
        "--fingerprints", action="store_true", help="print what the installed vLLM has, write nothing"
    )
    parser.add_argument("path", nargs="?", type=Path, default=default_path())
    arguments = parser.parse_args(argv)
    if arguments.fingerprints:
        version = compat.base_version(compat.installed_vllm_version())
        print(render_fingerprints(PATCHES, version), end="")
        return 0
    path: Path = arguments.path
    text = render_patches(PATCHES)
    if not arguments.check:
        path.write_text(text)
        return 0
    if path.is_file() and path.read_text() == text:
        return 0
    print(f"{path} is not current: run python -m structuredllm_engine_patches.render", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
