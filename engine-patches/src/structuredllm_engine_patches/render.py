"""Write `PATCHES.md` from the register: `python -m structuredllm_engine_patches.render [--check] [PATH]`."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from structuredllm_engine_patches import compat
from structuredllm_engine_patches.patch import Fit, Patch, Unfit
from structuredllm_engine_patches.registry import PATCHES
from structuredllm_engine_patches.versions import NEWER, SUPPORTED, Release

HEADER = """\
# Patches

Generated from the register (`registry.py`) by `python -m structuredllm_engine_patches.render`; do not edit.

"""
VERSIONS = """
## Versions of vLLM

"Applied" means that the patch fits and was proven on the real engine. "Not needed": the version does not
have the fault. "Not available": it has, and there is no cure of it yet; the engine starts all the same and
says so in its log and in `/info`. On any other version the policy `required` stops the engine before it
starts; with `optional` it starts with what works on any version.

"""
NEWER_HEADER = """
## Newer releases

"""
WIDTH = 110


def default_path() -> Path:
    """Return the place of PATCHES.md in the source tree."""
    return Path(__file__).resolve().parents[2] / "PATCHES.md"


def render_patches(patches: Sequence[Patch]) -> str:
    """Return the page as Markdown."""
    overview = _table(
        ("Patch", "What it does", "Where"), [(f"`{p.id}`", p.title, ", ".join(p.processes)) for p in patches]
    )
    versions = _table(
        ("Patch", *SUPPORTED, "any other"),
        [(f"`{p.id}`", *(_word(p, version) for version in SUPPORTED), _word(p, "")) for p in patches],
    )
    newer = "".join(_render_release(release) for release in NEWER)
    sections = "".join(_render_section(p) for p in patches)
    return HEADER + overview + VERSIONS + versions + NEWER_HEADER + newer + sections


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "|---" * len(header) + "|\n"
    head, *body = (f"| {' | '.join(cells)} |\n" for cells in (header, *rows))
    return head + rule + "".join(body)


def _word(patch: Patch, version: str) -> str:
    unfit = patch.unfit.get(version)
    if unfit is not None:
        return "not available" if unfit.needed else "not needed"
    return "no" if patch.fit_for(version) is None else "applied"


def _render_release(release: Release) -> str:
    points = (textwrap.fill(f"- {t}", WIDTH, subsequent_indent="  ") for t in (release.proof, *release.needs))
    return f"vLLM {release.version} is not supported. What it would take:\n\n" + "\n".join(points) + "\n"


def _render_section(patch: Patch) -> str:
    applied = "under every policy" if patch.always else "with the policies `required` and `optional`"
    return (
        f"\n## {patch.id}\n\n"
        f"{textwrap.fill(patch.why, WIDTH)}\n\n"
        f"- Applied: {applied}\n"
        f"- Upstream: <{patch.upstream}>\n"
        f"- What upstream would have to change: {patch.upstream_change}\n"
        f"- Remove when: {patch.remove_when}\n"
    ) + "".join(_render_version(patch, version) for version in [*SUPPORTED, ""])


def _render_version(patch: Patch, version: str) -> str:
    name = f"vLLM {version}" if version else "Any other version"
    unfit = patch.unfit.get(version)
    if unfit is not None:
        return _render_unfit(name, unfit)
    fit = patch.fit_for(version)
    # What holds for any version is said once.
    if fit is None or (version and version not in patch.fits):
        return ""
    return _render_fit(name if patch.fits else "Any version", fit)


def _render_unfit(name: str, unfit: Unfit) -> str:
    return f"- {name}: {'not available' if unfit.needed else 'not needed'}, {unfit.reason}\n"


def _render_fit(name: str, fit: Fit) -> str:
    targets = ", ".join(f"`{target}`" for target in fit.targets)
    if not fit.fingerprints:
        return f"- {name}: replaces {targets}, by capability (no fingerprints)\n"
    fingerprints = "".join(f"  - `{path}`: `{value}`\n" for path, value in fit.fingerprints.items())
    return f"- {name}: replaces {targets}\n  and relies on this source (fingerprints):\n{fingerprints}"


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
