#!/usr/bin/env bash
# Builds what a host without a checkout installs SpeeDO from, for this machine's Debian release and Python.
#
#   make wheels             after make setup: into dist/
#   scripts/wheels.sh DIR   into another folder
#
# speedo-*.whl, caffe_nets-*.whl, pycaffe-*.whl (the one of the cache; built where it is missing),
# wheels of what pip had to compile for this Python,
# requirements.txt: all these wheels and all that they need, as locked, with hashes, so that no index can give another one,
# packages.txt: the Debian packages that they need.
set -euo pipefail
# shellcheck source=scripts/build_pycaffe.sh
source "$(dirname "${BASH_SOURCE[0]}")/build_pycaffe.sh"

python="$SPEEDO_ROOT/.venv/bin/python"
work=''

main() {
  local target
  (($# == 1)) || stop 'usage: scripts/wheels.sh FOLDER'
  [ -x "$SPEEDO_ROOT/.venv/bin/speedo" ] || stop 'make setup comes first'
  work="$(mktemp -d)"
  trap 'end_step; rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir -p "$1" "$work/dist"
  target="$(cd "$1" && pwd)"

  take_pycaffe
  step 'speedo wheels' "$python" -m pip --disable-pip-version-check wheel --no-index --no-deps --no-build-isolation \
    --wheel-dir "$work/dist" "$SPEEDO_ROOT/packages/caffe-nets" "$SPEEDO_ROOT"
  : >"$work/compiled"
  step 'compiled packages' take_compiled
  requirements >"$work/dist/requirements.txt"
  packages >"$work/dist/packages.txt"
  # Of an earlier version, or for another Python.
  rm -f "$target"/*.whl
  cp "$work"/dist/* "$target/"
  how_to_install "$target"
}

take_pycaffe() {
  local cached needed missing archive="$SPEEDO_CACHE/source/$CAFFE_ARCHIVE"
  cached="$SPEEDO_CACHE/pycaffe/$(pycaffe_key "$python")"
  if ! compgen -G "$cached/*.whl" >/dev/null; then # setup took a pycaffe of the user's own, or the cache was emptied
    if command -v dpkg-query >/dev/null; then
      mapfile -t needed < <(names "$SPEEDO_ROOT/scripts/packages/pycaffe-build.txt")
      mapfile -t missing < <(missing_packages "${needed[@]}")
      if ((${#missing[@]})); then
        step 'Debian packages' as_root apt-get install --yes --no-install-recommends "${missing[@]}"
      fi
    fi
    step 'Caffe source' fetch_caffe_source "$archive"
    step 'Caffe build' compile_pycaffe "$python" "$archive" "$work/build"
    step 'pycaffe wheel' pack_pycaffe "$python" "$work/build" "$cached"
  fi
  cp "$cached"/*.whl "$work/dist/"
}

# take_compiled: wheels of what pip had to compile here, since its makers offer none for this Python; hosts need no compiler.
take_compiled() {
  local name version entry="$work/entry.txt"
  "$python" -c "$find_compiled" | while read -r name version; do
    [ "$name" != pycaffe ] || continue
    awk -v name="$name==$version" '/^[A-Za-z0-9]/ { wanted = $1 == name } wanted' "$SPEEDO_ROOT/requirements.lock" >"$entry"
    [ -s "$entry" ] || continue # a tool of the developers only
    "$python" -m pip --disable-pip-version-check wheel --no-deps --require-hashes --requirement "$entry" \
      --wheel-dir "$work/more"
    # A wheel that came from an index bears the tag of the systems that it fits in its name, whatever is inside.
    if compgen -G "$work/more/*-linux_*.whl" >/dev/null; then
      mv "$work"/more/*-linux_*.whl "$work/dist/"
      printf '%s==%s\n' "$name" "$version" >>"$work/compiled"
    fi
  done
}

# An index takes no wheel with the tag of plain Linux, so one that has it was made on this machine, or was renamed.
find_compiled='
from importlib.metadata import distributions
from sysconfig import get_platform
here = "-" + get_platform().replace("-", "_").replace(".", "_")
for one in distributions():
    tags = [line for line in (one.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    if any(tag.endswith(here) for tag in tags):
        print(one.name.lower(), one.version)
'

requirements() {
  local wheel name version rest
  echo '# Made by make wheels. Install with: pip install --requirement FOLDER/requirements.txt'
  echo '--find-links .'
  for wheel in "$work"/dist/*.whl; do
    IFS=- read -r name version rest <<<"$(basename "$wheel")"
    : "$rest"
    printf '%s==%s --hash=sha256:%s\n' "$name" "$version" "$(sha256sum "$wheel" | cut -d ' ' -f 1)"
  done
  # What was compiled here stands above, with the sum of its wheel; the lock names those of its source.
  awk 'FILENAME == ARGV[1] { skip[$1] = 1; next } /^#/ { next } /^[A-Za-z0-9]/ { wanted = !($1 in skip) } wanted' \
    "$work/compiled" "$SPEEDO_ROOT/requirements.lock"
}

packages() {
  local libraries
  libraries="$(run_packages)"
  "$python" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")'
  printf '%s\n' redis-server dataset-fashion-mnist
  if [ -n "$libraries" ]; then names "$libraries"; fi
}

how_to_install() {
  local version place
  version="$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}")')"
  place="$(basename "$1")"
  du -h "$1"/*.whl | sed 's/^/  /'
  cat <<TEXT

With a copy of $1 as $place on a host of the same system$(release_words) and $version:
  xargs apt-get install --yes --no-install-recommends <$place/packages.txt   # as root
  $version -m venv speedo && speedo/bin/pip install --requirement $place/requirements.txt
  speedo/bin/speedo doctor
TEXT
}

release_words() {
  local release
  release="$(debian_release)"
  if [ -n "$release" ]; then echo " (Debian $release, $(uname -m))"; fi
}

main "$@"
