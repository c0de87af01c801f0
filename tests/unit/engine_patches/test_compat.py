"""Versions and fingerprints."""

import sys
from types import ModuleType

import pytest

from structuredllm_engine_patches import compat
from structuredllm_engine_patches.errors import FingerprintMismatchError, UnsupportedVersionError

SOURCE = """
    def step(self, a):  # a comment
        '''A docstring.'''
        text = f"{a}#not a comment"

        return a + 1
"""


def test_fingerprint_ignores_comments_layout_and_docstrings() -> None:
    same = (
        'def step(self, a):\n  """Other words.\n\n  More."""\n'
        '  text = f"{a}#not a comment"\n  return (a\n    + 1)\n'
    )
    assert compat.fingerprint_source(SOURCE) != compat.fingerprint_source(same)  # parentheses are code
    assert compat.fingerprint_source(SOURCE) == compat.fingerprint_source(
        same.replace("(a\n    + 1)", "a + 1")
    )


@pytest.mark.parametrize(("old", "new"), [("a + 1", "a + 2"), ("#not a", "#is a"), ("self, a", "self, a=0")])
def test_fingerprint_changes_with_the_code(old: str, new: str) -> None:
    assert compat.fingerprint_source(SOURCE) != compat.fingerprint_source(SOURCE.replace(old, new))


def test_fingerprint_is_the_same_on_every_python() -> None:
    assert compat.fingerprint_source(SOURCE) == "dc2cc069f60378ba"


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.0+cu130"])
def test_local_part_of_the_version_does_not_matter(version: str) -> None:
    assert compat.base_version(version) == "0.32.0"


@pytest.mark.parametrize("version", ["0.32.1", "0.33.0", "0.32.0rc1", "0.3"])
def test_other_versions_are_refused_with_a_way_out(version: str) -> None:
    assert compat.base_version(version) != "0.32.0"
    error = compat.unsupported_version("p001-x", version, ("0.32.0", "0.9.2"))
    assert isinstance(error, UnsupportedVersionError)
    for part in ("p001-x", version, "0.9.2, 0.32.0", "STRUCTUREDLLM_PATCHES=optional"):
        assert part in str(error)


def test_changed_and_missing_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:test_fingerprint_changes_with_the_code"
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    with pytest.raises(FingerprintMismatchError, match="differs"):
        compat.check_fingerprint("p", here, "0" * 16)
    compat.check_fingerprint("p", here, compat.fingerprint(compat.resolve(here)))
    for path in (f"{__name__}:nothing", "no_such_module:x", "json:JSONDecoder.nothing", "builtins:len"):
        with pytest.raises(FingerprintMismatchError, match="cannot be read"):
            compat.check_fingerprint("p", path, "0" * 16)


def _this_module() -> ModuleType:
    module = ModuleType(__name__)
    module.test_fingerprint_changes_with_the_code = test_fingerprint_changes_with_the_code  # type: ignore[attr-defined]
    return module
