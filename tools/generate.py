"""Writes all generated files, or with --check says which are out of date.

Owns the list of generators; each is a command with a `--check` mode of its own that exits non-zero and names
the file and the command that mends it.
"""

import subprocess
import sys

from tools.paths import repo_root

GENERATORS: tuple[tuple[str, ...], ...] = (
    ("-m", "tools.gen_crd"),
    ("-m", "tools.gen_values_schema"),
    ("-m", "tools.gen_dashboards"),
    ("-m", "structuredllm_engine_patches.render"),
    ("-m", "tools.gen_engine_metrics"),
    ("-m", "tools.gen_gateway_outcomes"),
    ("-m", "tools.gen_gateway_failures"),
    ("-m", "tools.gen_gateway_admission"),
)


def main(argv: list[str] | None = None) -> int:
    """Run every generator with the given arguments (`--check` or none); return 1 if any fails."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.generate [--check]", file=sys.stderr)
        return 2
    failed = [
        generator
        for generator in GENERATORS
        if subprocess.run((sys.executable, *generator, *arguments), cwd=repo_root(), check=False).returncode
    ]
    if failed and arguments:
        print("error: generated files are out of date; run `make gen` and commit the result", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
