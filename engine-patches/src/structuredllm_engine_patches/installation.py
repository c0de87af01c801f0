"""Apply the register's patches in one process, as the policy says, and remember what became of each.

Owns the order and the policy; knows nothing of what a patch does.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from structuredllm_engine_patches import compat
from structuredllm_engine_patches import patch as patching
from structuredllm_engine_patches.errors import EnginePatchError
from structuredllm_engine_patches.import_hook import ImportHook, find_hook
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.settings import Policy, Settings, read_settings
from structuredllm_engine_patches.telemetry.observation import Observation, PatchState, State

LOGGER_NAME = "vllm.structuredllm_engine_patches"
"""Below vLLM's logger: that is the one with a handler and a format in every vLLM process."""

DISTRIBUTION = "structuredllm-engine-patches"
NOT_IMPORTED = "its module is not imported in this process"


class Installation:
    """The patches of one process.

    Attributes:
        settings: settings that it was made with.
        vllm_version: version of the installed vLLM without its local part.
        observation: the metrics' values; only an engine core's are ever shown.
    """

    def __init__(self, patches: Sequence[Patch], settings: Settings, vllm_version: str) -> None:
        self.settings = settings
        self.observation = Observation()
        self.vllm_version = compat.base_version(vllm_version)
        self._found_version = vllm_version
        self._patches = tuple(patches)
        self._hook = ImportHook(self)
        self._states = {p.id: _initial_state(p) for p in patches}

    @property
    def package_version(self) -> str:
        """Return the version of this package."""
        return metadata.version(DISTRIBUTION)

    @property
    def logger(self) -> logging.Logger:
        """Return the logger whose lines appear in vLLM's log."""
        return logging.getLogger(LOGGER_NAME)

    def states(self) -> tuple[PatchState, ...]:
        """Return the state of each patch, in the register's order."""
        return tuple(self._states[p.id] for p in self._patches)

    def state_of(self, patch_id: str) -> State:
        """Return the state of one patch."""
        return self._states[patch_id].state

    def apply(self) -> None:
        """Apply each patch now, or as soon as its target's module is imported.

        Raises:
            EnginePatchError: policy `required` and a patch does not fit. The version is checked here and now,
                in every process, so that the front-end stops before it starts anything.
        """
        sys.meta_path.insert(0, self._hook)
        for patch in self._patches:
            if self.settings.policy is Policy.DISABLED and not patch.always:
                self._states[patch.id] = PatchState(
                    patch.id, State.DISABLED, "STRUCTUREDLLM_PATCHES=disabled"
                )
                continue
            unfit = patch.unfit.get(self.vllm_version)
            if unfit is not None:
                self._leave_out(patch, unfit)
                continue
            fit = patch.fit_for(self.vllm_version)
            if fit is None:
                self._does_not_fit(
                    patch, compat.unsupported_version(patch.id, self._found_version, patch.vllm_versions)
                )
                continue
            self._hook.when_imported(fit.module, lambda p=patch, f=fit: self._apply_one(p, f))  # type: ignore[misc]
        self._tell_what_is_left_out()

    def revert(self) -> None:
        """Put every original back and forget the hook."""
        for patch in self._patches:
            fit = patch.fit_for(self.vllm_version)
            if fit is not None and fit.module in sys.modules and self._states[patch.id].state is State.ACTIVE:
                patching.revert(patch, fit)
        if self._hook in sys.meta_path:
            sys.meta_path.remove(self._hook)

    def _apply_one(self, patch: Patch, fit: Fit) -> None:
        try:
            for path, expected in fit.fingerprints.items():
                compat.check_fingerprint(patch.id, path, expected)
            for target in fit.targets:
                compat.check_exists(patch.id, target)
        except EnginePatchError as error:
            self._does_not_fit(patch, error)
            return
        patching.apply(patch, fit, self)
        self._states[patch.id] = PatchState(patch.id, State.ACTIVE)

    def _leave_out(self, patch: Patch, unfit: Unfit) -> None:
        state = State.UNAVAILABLE if unfit.needed else State.NOT_NEEDED
        self._states[patch.id] = PatchState(patch.id, state, unfit.reason)

    def _tell_what_is_left_out(self) -> None:
        left_out = [f"{s.patch_id} ({s.reason})" for s in self.states() if s.state is State.UNAVAILABLE]
        if left_out:
            self.logger.warning("not available for vLLM %s: %s", self.vllm_version, "; ".join(left_out))

    def _does_not_fit(self, patch: Patch, error: EnginePatchError) -> None:
        self._states[patch.id] = PatchState(patch.id, State.SKIPPED, str(error))
        if self.settings.policy is Policy.REQUIRED or patch.vital:
            self.logger.error("%s", error)
            raise error
        self.logger.warning("skipped: %s", error)


def _initial_state(patch: Patch) -> PatchState:
    """Return the state until the target's module is imported, as an engine core's /info has to show it."""
    if Process.ENGINE_CORE in patch.processes:
        return PatchState(patch.id, State.SKIPPED, NOT_IMPORTED)
    return PatchState(patch.id, State.ELSEWHERE, f"takes effect in: {', '.join(patch.processes)}")


def install(environ: Mapping[str, str] | None = None) -> Installation:
    """Install the register's patches in this process; a second call returns the first one's installation.

    Raises:
        EnginePatchError: see `Installation.apply` and `settings.read_settings`.
    """
    existing = find_hook()
    if existing is not None:
        owner: Installation = existing.owner
        return owner
    from structuredllm_engine_patches.registry import PATCHES

    settings = read_settings(os.environ if environ is None else environ)
    installation = Installation(PATCHES, settings, compat.installed_vllm_version())
    try:
        installation.apply()
    except EnginePatchError:
        # A process that catches the error and asks again must get the error again, not half an installation.
        installation.revert()
        raise
    return installation
