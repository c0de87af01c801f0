#!/usr/bin/env bash
# Prepare the Python side of the working tree: a pinned uv in the user's cache and .venv from uv.lock.
# Idempotent and quick when nothing changed. Prints only what it does; errors say what to do.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9
CACHE="${STRUCTUREDLLM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/structuredllm}"
UV_HOME="$CACHE/uv/$UV_VERSION"

say() { printf '    %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

command -v python3 >/dev/null || die "python3 is not on PATH; install Python 3.11 or newer (Debian: apt-get install python3)"
python3 -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 14)))' ||
  die "python3 is $(python3 -V 2>&1 | cut -d' ' -f2); 3.11 to 3.13 is needed"

if [ ! -x "$UV_HOME/bin/uv" ]; then
  say "installing uv $UV_VERSION into $UV_HOME"
  rm -rf "$UV_HOME"
  if ! python3 -m venv "$UV_HOME" 2>/dev/null; then
    # Debian's python3 comes without ensurepip until python3-venv is there.
    rm -rf "$UV_HOME"
    [ "$(id -u)" = 0 ] || die "python3 cannot make a venv; install python3-venv and run again"
    say "installing Debian's python3-venv"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >/dev/null
    python3 -m venv "$UV_HOME"
  fi
  # One try more: a registry that is slow to answer must not end a long run.
  "$UV_HOME/bin/pip" install -q "uv==$UV_VERSION" || "$UV_HOME/bin/pip" install -q "uv==$UV_VERSION" ||
    { rm -rf "$UV_HOME"; die "uv $UV_VERSION could not be installed from the package registry"; }
fi

export UV_PYTHON_DOWNLOADS=never UV_NATIVE_TLS=true
stamp=.venv/.structuredllm-synced
want=$(cat uv.lock pyproject.toml ./*/pyproject.toml | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  say "syncing .venv from uv.lock"
  "$UV_HOME/bin/uv" sync --frozen --all-packages --quiet --python "$(command -v python3)"
  printf '%s\n' "$want" >"$stamp"
fi
ln -sfn "$UV_HOME/bin/uv" .venv/bin/uv
