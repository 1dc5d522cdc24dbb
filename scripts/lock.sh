#!/usr/bin/env bash
# Writes the lock files from pyproject.toml: exact versions and hashes, no registry's address.
#
#   scripts/lock.sh            keep what is locked where pyproject.toml allows it
#   scripts/lock.sh --upgrade  take the newest of everything
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check uv

compile() {
  "$work/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-config --custom-compile-command 'make lock' "$@"
}

compile --output-file requirements.lock "$@" pyproject.toml
compile --output-file requirements-dev.lock --constraint requirements.lock "$@" pyproject.toml --group dev
compile --output-file requirements-own-caffe.lock --constraint requirements-dev.lock "$@" --group own-caffe

if grep -nE '://[a-z0-9]' requirements*.lock; then
  echo 'scripts/lock.sh: a lock file names an address (above); remove it' >&2
  exit 1
fi
