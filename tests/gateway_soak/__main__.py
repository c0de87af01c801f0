"""`python -m tests.gateway_soak`: ask the gateway for 100,000 answers of which most are wrong.

Writes build/soak/gateway.json; exit status 1 when the gateway was wrong once.
"""

import argparse
import asyncio
import itertools
import json
import sys
from pathlib import Path

from tests.gateway_soak.cases import CORRUPTIONS
from tests.gateway_soak.run import Report, soak
from tools.paths import repo_root


def main() -> int:
    """Run the soak that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.gateway_soak", description=__doc__)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one")
    parser.add_argument("--name", choices=sorted(CORRUPTIONS), help="this corruption only")
    parser.add_argument("--out", type=Path, default=repo_root() / "build" / "soak" / "gateway.json")
    options = parser.parse_args()
    step = max(1, options.answers // 10)

    def progress(report: Report) -> None:
        if report.cases % step == 0:
            print(f"soak: {report.cases} of {options.answers}, faults {dict(report.faults)}", flush=True)

    print(f"soak: seed {options.seed}, {len(CORRUPTIONS)} kinds of answers", flush=True)
    numbers = itertools.islice(itertools.count(options.first), options.answers)
    report = asyncio.run(soak(seed=options.seed, numbers=numbers, name=options.name, progress=progress))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    for detail in report.details:
        print(f"soak: fault: {detail}", file=sys.stderr)
    print(f"soak: {'failed' if report.faults else 'passed'} in {report.seconds:.0f} s; {options.out}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
