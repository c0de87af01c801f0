"""Does a patch fit the vLLM that is installed? Versions and fingerprints of source.

Owns the questions only; what follows from the answers is `installation`'s business. Imports vLLM modules by
name and only when asked for a fingerprint.
"""

import ast
import hashlib
import importlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Collection
from importlib import metadata
from typing import Any, cast

from structuredllm_engine_patches.errors import FingerprintMismatchError, UnsupportedVersionError

DISTRIBUTION = "vllm"


def installed_vllm_version() -> str:
    """Return the version of the installed vLLM, with its local part (`0.32.0+cpu`).

    Raises:
        UnsupportedVersionError: no distribution called vllm is installed.
    """
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise UnsupportedVersionError(
            "no distribution named vllm is installed here: install vLLM next to the patch package"
        ) from None


def base_version(version: str) -> str:
    """Return the version without its local part: `0.32.0+cpu` and `0.32.0+cu130` are both `0.32.0`."""
    return version.split("+", 1)[0]


def unsupported_version(patch_id: str, found: str, supported: Collection[str]) -> UnsupportedVersionError:
    """Return the error of a patch that was not proven on the version `found`; it says what to do."""
    return UnsupportedVersionError(
        f"patch {patch_id} does not support vLLM {found}: "
        f"supported {', '.join(sorted(supported, key=_version_key)) or 'none'}. {WAY_OUT}"
    )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def check_exists(patch_id: str, path: str) -> None:
    """Check that there is something to replace at `path`.

    Raises:
        FingerprintMismatchError: there is not.
    """
    try:
        find(path)
    except (ImportError, AttributeError) as error:
        raise FingerprintMismatchError(
            f"patch {patch_id} replaces {path}, which this vLLM does not have "
            f"({type(error).__name__}: {error}). {WAY_OUT}"
        ) from error


def check_fingerprint(patch_id: str, path: str, expected: str) -> None:
    """Check that the source at `path` is the one that the patch was proven on.

    Raises:
        FingerprintMismatchError: the source differs, or nothing is found at `path`.
    """
    try:
        found = fingerprint(resolve(path))
    except (ImportError, AttributeError, OSError, TypeError) as error:
        raise FingerprintMismatchError(
            f"patch {patch_id} relies on {path}, which cannot be read in this vLLM "
            f"({type(error).__name__}: {error}). {WAY_OUT}"
        ) from error
    if found != expected:
        raise FingerprintMismatchError(
            f"patch {patch_id} relies on {path}, whose source differs from the supported one "
            f"(fingerprint {found}, expected {expected}): someone else changed or patched it. {WAY_OUT}"
        )


WAY_OUT = (
    "Use an engine image with a supported vLLM and the patch package that belongs to it, or set "
    "STRUCTUREDLLM_PATCHES=optional (start without the patch) or =disabled"
)


def find(path: str) -> Any:
    """Return the object at `module:Qualified.name` as it stands there."""
    module_name, _, qualified = path.partition(":")
    found: Any = importlib.import_module(module_name)
    for name in qualified.split("."):
        found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
    return found


def resolve(path: str) -> Callable[..., Any]:
    """Return the function at `module:Qualified.name`, looking through wrappers that name what they wrap."""
    return cast(Callable[..., Any], inspect.unwrap(find(path)))


def fingerprint(function: Callable[..., Any]) -> str:
    """Return 16 hex digits that change when the code changes, not when comments, layout or docstrings do."""
    return fingerprint_source(inspect.getsource(function))


def fingerprint_source(source: str) -> str:
    """Return the fingerprint of a piece of source text; see `fingerprint`.

    Works on the text without whitespace, not on a dump of the tree: dumps differ between Python versions,
    and the engine image may run another one than the tests.
    """
    text = textwrap.dedent(source)
    lines = [list(line) for line in text.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1][column : token.end[1]] = " " * len(token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                for row in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    lines[row - 1] = []
    bare = "".join("".join("".join(line).split()) for line in lines)
    return hashlib.sha256(bare.encode()).hexdigest()[:16]
