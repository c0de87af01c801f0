"""`python -m tools.models toy|toy-hybrid|smollm2`: print the model's folder, making it first where needed."""

import argparse
import sys

from tools.engine_env import EngineEnvError
from tools.models.store import RECIPES, ModelError, ensure_model


def main() -> int:
    """Parse the command line, make the model, print its folder on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__)
    parser.add_argument("name", choices=[recipe.name for recipe in RECIPES])
    arguments = parser.parse_args()
    try:
        print(ensure_model(arguments.name))
    except (ModelError, EngineEnvError) as error:
        print(f"models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
