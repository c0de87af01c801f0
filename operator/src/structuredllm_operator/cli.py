"""Command line of the operator. Exit codes: 0 stopped on request, 1 unusable set-up, 2 bad arguments."""

import asyncio
import sys
from importlib.metadata import version

from pydantic import ValidationError
from pydantic_settings import CliApp

from structuredllm_operator.errors import ConfigError
from structuredllm_operator.logs import configure_logging
from structuredllm_operator.runtime import run_operator
from structuredllm_operator.settings import Settings


def main(argv: list[str] | None = None) -> int:
    """Run the operator; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--version" in arguments:
        print(f"structuredllm-operator {version('structuredllm-operator')}")
        return 0
    try:
        settings = CliApp.run(Settings, cli_args=arguments)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            field = "-".join(str(part) for part in one["loc"]).replace("_", "-")
            print(f"structuredllm-operator: --{field}: {one['msg']}; see --help", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(run_operator(settings))
    except ConfigError as error:
        print(f"structuredllm-operator: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
