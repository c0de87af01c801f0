"""The type of a patch: data that says what is replaced and why, and the two operations on its target.

`PATCHES.md`, the start-up log, /info and the tests are all made from these fields.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MARK = "__structuredllm_patch__"


class Process(StrEnum):
    """Kinds of vLLM processes."""

    FRONT_END = "front-end"
    ENGINE_CORE = "engine core"
    WORKER = "worker"


Build = Callable[[Callable[..., Any], Any], Callable[..., Any]]
"""Makes the replacement from the original and the `Installation`."""


@dataclass(frozen=True)
class Fit:
    """How a patch fits one version of vLLM.

    Attributes:
        targets: `module:Class.attribute` of everything that is replaced; all in one module.
        fingerprints: `module:Qualified.name` to the fingerprint of its source, for the targets and for all
            other upstream code that the patch relies on.
    """

    targets: tuple[str, ...]
    fingerprints: Mapping[str, str]

    @property
    def module(self) -> str:
        """Return the module of the targets."""
        return self.targets[0].partition(":")[0]


@dataclass(frozen=True)
class Unfit:
    """A supported version that a patch is knowingly not applied to; unlike silence it stops no engine.

    Attributes:
        reason: one sentence, shown in /info and in PATCHES.md.
        needed: True: the version has the fault and no cure of it yet. False: it does not have the fault.
    """

    reason: str
    needed: bool


@dataclass(frozen=True)
class Patch:
    """One replacement of an attribute of a vLLM class, in one or more classes of a module.

    Attributes:
        id: stable id, `pNNN-words`.
        title: what it does, one line.
        processes: where it takes effect; other processes never import the target's module because of it.
        fits: how it fits each version (without local part) that it was proven on.
        unfit: the supported versions that it is knowingly not applied to.
        other_versions: how it fits every version that is named in neither, unproven ones too: only for what
            must work where nothing is known of the source.
        why: the fault that it cures.
        upstream: link to the upstream item.
        upstream_change: what upstream would have to change, so that it could be sent there.
        remove_when: what has to be true for it to go.
        build: makes the replacement.
        always: applied under the policy `disabled` too (it only watches).
        vital: without it the engine does not start under the policy `optional` either.
    """

    id: str
    title: str
    processes: tuple[Process, ...]
    fits: Mapping[str, Fit]
    why: str
    upstream: str
    upstream_change: str
    remove_when: str
    build: Build
    unfit: Mapping[str, Unfit] = field(default_factory=dict)
    other_versions: Fit | None = None
    always: bool = False
    vital: bool = False

    @property
    def vllm_versions(self) -> tuple[str, ...]:
        """Return the versions that it was proven on, in the order of the register."""
        return tuple(self.fits)

    def fit_for(self, version: str) -> Fit | None:
        """Return how the patch is applied to a version (without local part); None where it is not."""
        return None if version in self.unfit else self.fits.get(version, self.other_versions)


def is_applied(patch: Patch, fit: Fit) -> bool:
    """Return whether the patch is in place at all targets of a fit; imports their module."""
    return all(_is_replaced(patch, target) for target in fit.targets)


def apply(patch: Patch, fit: Fit, context: Any) -> None:
    """Put the replacements in place; a second call changes nothing."""
    for target in fit.targets:
        if _is_replaced(patch, target):
            continue
        owner, attribute = _owner_of(target)
        original = getattr(owner, attribute)
        replacement = patch.build(original, context)
        setattr(replacement, MARK, patch.id)
        setattr(replacement, f"{MARK}original", original)
        setattr(replacement, f"{MARK}inherited", attribute not in vars(owner))
        setattr(owner, attribute, replacement)


def revert(patch: Patch, fit: Fit) -> None:
    """Put the originals back; without effect where the patch is not in place (or something wraps it)."""
    for target in fit.targets:
        if _is_replaced(patch, target):
            owner, attribute = _owner_of(target)
            replacement = getattr(owner, attribute)
            if getattr(replacement, f"{MARK}inherited"):
                # Whatever the base class has by now is what stands here again.
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, getattr(replacement, f"{MARK}original"))


def _is_replaced(patch: Patch, target: str) -> bool:
    owner, attribute = _owner_of(target)
    return getattr(getattr(owner, attribute), MARK, None) == patch.id


def _owner_of(target: str) -> tuple[Any, str]:
    module_name, _, qualified = target.partition(":")
    *owners, attribute = qualified.split(".")
    owner: Any = importlib.import_module(module_name)
    for name in owners:
        owner = getattr(owner, name)
    return owner, attribute
