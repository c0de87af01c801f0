"""Runs in the engine environment: apply the register to the real vLLM in several ways, print what happened
as JSON."""

import importlib
import json
import os
import sys
from typing import Any

from structuredllm_engine_patches import compat, register
from structuredllm_engine_patches.errors import EnginePatchError
from structuredllm_engine_patches.import_hook import find_hook
from structuredllm_engine_patches.patch import is_applied
from structuredllm_engine_patches.registry import PATCHES

VERSION = compat.base_version(compat.installed_vllm_version())
FITS = [(p, fit) for p in PATCHES if (fit := p.fit_for(VERSION)) is not None]


def attempt(policy: str) -> dict[str, Any]:
    """Register under a policy, describe the outcome, undo everything."""
    os.environ["STRUCTUREDLLM_PATCHES"] = policy
    error = ""
    try:
        register()
    except EnginePatchError as caught:
        error = f"{type(caught).__name__}: {caught}"
    hook = find_hook()
    if hook is None:
        return {"error": error, "states": {}}
    states = {s.patch_id: [s.state.value, s.reason] for s in hook.owner.states()}
    applied = {p.id: is_applied(p, fit) for p, fit in FITS}
    register()
    same = find_hook() is hook
    hook.owner.revert()
    return {"error": error, "states": states, "applied": applied, "registered_twice_is_once": same}


def main() -> None:
    """Print a JSON object of all attempts."""
    register()
    light = "vllm.v1.engine.core" not in sys.modules and "torch" not in sys.modules
    waiting = find_hook()
    assert waiting is not None
    waiting.owner.revert()

    import vllm.v1.engine.core as core

    for _, fit in FITS:
        importlib.import_module(fit.module)

    def current() -> dict[str, Any]:
        return {target: compat.find(target) for _, fit in FITS for target in fit.targets}

    originals = current()
    results: dict[str, Any] = {"register_is_light": light}
    results["fingerprints"] = {
        path: [compat.fingerprint(compat.resolve(path)), expected]
        for _, fit in FITS
        for path, expected in fit.fingerprints.items()
    }
    for policy in ("required", "optional", "disabled"):
        results[policy] = attempt(policy)
    results["reverted"] = {t: found is originals[t] for t, found in current().items()}

    upstream = core.EngineCore.step_with_batch_queue

    def foreign(self: Any) -> Any:
        return upstream(self)

    core.EngineCore.step_with_batch_queue = foreign
    for policy in ("required", "optional"):
        results[f"foreign {policy}"] = attempt(policy)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
