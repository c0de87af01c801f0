"""Runs in the engine environment: make the configuration of an engine with three stages that is asked for
asynchronous scheduling, print what became of it as JSON."""

import json
import sys

from vllm.engine.arg_utils import EngineArgs

from structuredllm_engine_patches.seams.async_guard import forced_off


def main(model: str) -> None:
    """Print `async_scheduling` and `reason`, or the `error` that a server would end with."""
    arguments = EngineArgs(
        model=model,
        pipeline_parallel_size=3,
        async_scheduling=True,
        distributed_executor_backend="mp",
        max_model_len=1024,
        enforce_eager=True,
    )
    try:
        config = arguments.create_engine_config()
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
        return
    found = {"async_scheduling": config.scheduler_config.async_scheduling, "reason": forced_off(config)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
