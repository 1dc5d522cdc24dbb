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
    --no-emit-index-url --no-emit-find-links --no-config --no-emit-package caffe-nets --custom-compile-command 'make lock' "$@"
}

compile --output-file requirements.lock "$@" pyproject.toml --extra leveldb --extra plot
compile --output-file requirements-dev.lock --constraint requirements.lock "$@" pyproject.toml --extra leveldb --extra plot --group dev
compile --output-file requirements-build.lock --constraint requirements-dev.lock "$@" --group build
# The oldest Ray that may be there, with what `ray job submit` needs: pyproject.toml has its lower bound.
oldest="$(sed -nE 's/^ *"ray>=([0-9.]+)[",].*/\1/p' pyproject.toml)"
[ -n "$oldest" ] || { echo "pyproject.toml has no ray>=VERSION" >&2; exit 1; }
echo "ray[default]==$oldest.*" >"$work/oldest-ray.in"
awk '/^[^ ]/ { ray = /^ray==/ } !ray' requirements-dev.lock | sed -E '/--hash/d; s/ *\\$//' >"$work/others.txt"
compile --output-file requirements-oldest-ray.lock --constraint "$work/others.txt" "$@" "$work/oldest-ray.in"
compile --output-file requirements-own-caffe.lock --constraint requirements-dev.lock "$@" --group own-caffe
# Without PyTorch and what it brings: which build fits is the machine's matter.
echo "torch; python_version < '3'" >"$work/no-torch.txt"
compile --output-file requirements-integrations.lock --constraint requirements-dev.lock --override "$work/no-torch.txt" "$@" --group integrations

if grep -nE '://[a-z0-9]' requirements*.lock; then
  echo 'scripts/lock.sh: a lock file names an address (above); remove it' >&2
  exit 1
fi
