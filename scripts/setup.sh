#!/usr/bin/env bash
# Makes a fresh Debian 12 or 13 machine ready: Debian packages, .venv with the locked Python packages, pycaffe, speedo.
#
#   make setup                              what a user or a node needs; what is there already is found, in seconds
#   make develop                            also what the tests and the checks of the code need
#   make setup TORCH=1                      also PyTorch, for --engine torch; one that is in .venv already is kept
#   make setup PYTHON=/path/to/python       the interpreter to make .venv with
#   make setup SPEEDO_CAFFE_PYTHONPATH=DIR  use the pycaffe in DIR, the folder that holds `caffe`
#   make setup SPEEDO_CAFFE_SOURCE=FILE     build pycaffe from a source archive fetched by hand
#   make setup SPEEDO_CAFFE_MIRROR=URI      fetch that archive from this Debian mirror
#
# Where things go: .venv and build/ here, downloads and the built wheel in ~/.cache/speedo (SPEEDO_CACHE).
# Nothing is written to /etc/apt, and Debian's services of redis and ssh are neither started nor enabled when they
# are installed: speedo starts a private redis where it needs one, and its tests their own sshd.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/build_pycaffe.sh
source "$SPEEDO_ROOT/scripts/build_pycaffe.sh"

venv="$SPEEDO_ROOT/.venv"
stamps="$venv/.setup"
venv_python="$venv/bin/python"
base_python=''  # the interpreter that .venv is made with
caffe_from=''   # 'own FOLDER' or 'wheel KEY'
develop=''      # 'yes': with what the tests need
torch_version=2.13 # tried with this code; pyproject.toml has all that it may be
wheel_folder='' # where the cache keeps the wheel of that key

# An interpreter inside a virtual environment stands for the one that it was made with.
find_base='import os, sys
if (3, 11) <= sys.version_info < (3, 14): print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))'

main() {
  case "$*" in
    '') ;;
    develop) develop=yes ;;
    *) stop 'usage: scripts/setup.sh [develop]' ;;
  esac
  cd "$SPEEDO_ROOT"
  mkdir -p build
  exec 9>build/setup.lock
  flock --nonblock 9 || { say '  another setup is at work here; waiting for it' && flock 9; }
  trap end_step EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM

  choose_python
  choose_caffe
  unset PYTHONPATH # another Caffe there, or a module that hides one of ours, is not what is installed and checked
  install_missing_packages
  make_venv
  install_python_packages
  install_pycaffe
  install_torch
  install_libraries
  install_speedo
  if ! fresh check "$caffe_from"; then
    step 'check' check_everything
    mark check "$caffe_from"
  fi
  line ready 'SpeeDO' "in ${SECONDS} s; next: make demo, or .venv/bin/speedo --help"
}

# --- what there is, and what is wanted -----------------------------------------------------------

choose_python() {
  local name found own
  own="$(debian_python "$(debian_release)")"
  for name in ${PYTHON:+"$PYTHON"} ${own:+"/usr/bin/python$own"} python3.11 python3; do
    found="$("$name" -c "$find_base" 2>/dev/null || true)"
    if [ -n "$found" ]; then
      base_python="$found"
      line ok 'Python' "$("$base_python" -c 'import platform; print(platform.python_version())')  $base_python"
      return
    fi
    if [ -n "${PYTHON:-}" ]; then
      stop "PYTHON is $PYTHON: it does not run, or is none of Python 3.11, 3.12 and 3.13" \
        "Name another one, for example: make setup PYTHON=/usr/bin/python${own:-3.11}"
    fi
  done
  stop "no Python from 3.11 to 3.13 was found (tried ${own:+/usr/bin/python$own, }python3.11 and python3)" \
    "On Debian 12 and 13: apt-get install python3, then make setup again." \
    'Elsewhere: make setup PYTHON=/path/to/python'
}

choose_caffe() {
  local stamp key own
  stamp="$(cat "$stamps/pycaffe" 2>/dev/null || true)"
  key="wheel $(pycaffe_key "$base_python")"
  wheel_folder="$SPEEDO_CACHE/pycaffe/${key#wheel }"
  if [ -n "${SPEEDO_CAFFE_PYTHONPATH:-}" ]; then
    [ -d "$SPEEDO_CAFFE_PYTHONPATH/caffe" ] || stop "SPEEDO_CAFFE_PYTHONPATH is $SPEEDO_CAFFE_PYTHONPATH, and there is no folder 'caffe' in it" \
      'Name the folder that holds it (for a built source tree of Caffe: its folder python).'
    caffe_from="own $(cd "$SPEEDO_CAFFE_PYTHONPATH" && pwd)"
  elif [ "$stamp" = "$key" ]; then
    caffe_from="$key" # settled by an earlier run
  elif [[ "$stamp" == own\ * && -d "${stamp#own }/caffe" ]]; then
    caffe_from="$stamp"
  elif (cd / && "$base_python" "$SPEEDO_ROOT/scripts/pycaffe/check.py") >/dev/null 2>&1; then
    caffe_from="own $(cd / && "$base_python" -c 'import caffe, os; print(os.path.dirname(os.path.dirname(os.path.abspath(caffe.__file__))))' 2>/dev/null)"
  else
    own="$(debian_python "$(debian_release)")"
    [[ -z "$own" || "$key" == "wheel cp${own/./}-"* ]] || stop "pycaffe can be built here for Python $own only, as Debian $(debian_release)'s Boost.Python is; $base_python is another" \
      "Choose a Python $own: make setup PYTHON=/usr/bin/python$own" \
      'or bring a pycaffe for yours: make setup SPEEDO_CAFFE_PYTHONPATH=/folder/that/holds/caffe'
    caffe_from="$key"
  fi
}

have_wheel() { compgen -G "$wheel_folder/*.whl" >/dev/null; }

# --- Debian packages -----------------------------------------------------------------------------

install_missing_packages() {
  local wanted=() missing lists=scripts/packages libraries sources compiles=''
  mapfile -t wanted < <(names "$lists/tools.txt" ${develop:+"$lists/develop.txt"})
  if [[ "$caffe_from" == wheel\ * ]]; then
    # On a release without a list of its own, what the build needs brings the libraries.
    libraries="$(run_packages)"
    if [ -n "$libraries" ]; then mapfile -t -O "${#wanted[@]}" wanted < <(names "$libraries"); fi
    if ! have_wheel && ! fresh pycaffe "$caffe_from"; then
      mapfile -t -O "${#wanted[@]}" wanted < <(names "$lists/pycaffe-build.txt")
      compiles=yes
    fi
  fi
  sources="$lists/python-$("$base_python" -c 'import sys; print(f"{sys.version_info.major}.{sys.version_info.minor}")')-build.txt"
  if [ -f "$sources" ] && ! { have_venv && have_python_packages; }; then
    mapfile -t -O "${#wanted[@]}" wanted < <(names "$sources")
    compiles=yes
  fi
  if [ -n "$compiles" ] && is_debians_python && ! has_headers; then wanted+=("$(basename "$base_python")-dev"); fi
  if is_debians_python && ! "$base_python" -c 'import ensurepip, venv' 2>/dev/null; then
    wanted+=("$(basename "$base_python")-venv")
  fi
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    line skip 'Debian packages' 'this is no Debian; see scripts/packages for what must be there'
    return
  fi
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if ((${#missing[@]} == 0)); then
    line ok 'Debian packages' "${#wanted[@]} wanted, all installed"
    return
  fi
  if (($(id -u) != 0)); then
    command -v sudo >/dev/null || stop "these Debian packages are missing, and there is neither root nor sudo to install them:" \
      "${missing[*]}" "Have them installed (apt-get install --no-install-recommends ...) and run make setup again."
    sudo -v || stop 'sudo was refused' "These Debian packages have to be installed: ${missing[*]}"
  fi
  rm -f "$stamps/check"
  step 'Debian packages' install_packages "${missing[@]}"
}

is_debians_python() { [[ "$base_python" =~ ^/usr/bin/python3\.1[1-3]$ ]]; }

has_headers() { [ -f "$("$base_python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; }

# install_packages NAME...: as they are; Debian starts and enables a service that it installs, which is prevented.
install_packages() {
  local policy=/usr/sbin/policy-rc.d ours='# put here by speedo setup while it installs packages' service services=()
  [[ " $* " == *' redis-server '* ]] && services+=(redis-server)
  [[ " $* " == *' openssh-server '* ]] && services+=(ssh)
  as_root apt-get -o DPkg::Lock::Timeout=300 update ||
    echo 'the package lists could not all be fetched; going on with those that are there'
  if ((${#services[@]})); then
    if [ ! -e "$policy" ] || grep -q "^$ours" "$policy"; then
      # shellcheck disable=SC2064
      trap "as_root rm -f $policy" EXIT
      printf '#!/bin/sh\n%s\nexit 101\n' "$ours" | as_root tee "$policy" >/dev/null
      as_root chmod 755 "$policy"
    fi
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
    install --yes --no-install-recommends "$@"
  for service in "${services[@]}"; do
    as_root systemctl disable "$service.service" || true
    as_root update-rc.d "$service" disable || true
    as_root service "$service" stop || true
  done
}

# --- .venv ---------------------------------------------------------------------------------------

# fresh NAME KEY: whether the step NAME was done for exactly this KEY.
fresh() { [ "$(cat "$stamps/$1" 2>/dev/null || true)" = "$2" ]; }

# mark NAME KEY: it is done now; whatever was changed is checked once more before this run ends.
mark() {
  mkdir -p "$stamps"
  rm -f "$stamps/check"
  printf '%s\n' "$2" >"$stamps/$1"
}

have_venv() { [ "$("$venv_python" -c "$find_base" 2>/dev/null || true)" = "$base_python" ]; }

make_venv() {
  if have_venv; then
    line ok '.venv' 'made earlier'
    return
  fi
  step '.venv' create_venv
}

create_venv() { "$base_python" -m venv --clear "$venv"; }

# compiled FOLDER: as pip does for what it installs, but with every core, and for this folder too, so that no
# process of a run has to where PYTHONDONTWRITEBYTECODE is set. What is not for this Python stays as it is.
compiled() { "$venv_python" -m compileall -q -j 0 "$1" >/dev/null || true; }

pip() { "$venv_python" -m pip --disable-pip-version-check --no-input "$@"; }

# locks [KIND]: what is installed for a user, or for a developer: all of a user's packages, and more.
locks() {
  if [ -n "$1" ]; then echo requirements-dev.lock; else printf '%s\n' requirements.lock requirements-build.lock; fi
}

packages_key() { locks "$1" | xargs sha256sum | hash_of -; }

have_python_packages() { fresh "${develop:+develop-}python-packages" "$(packages_key "$develop")"; }

have_oldest_ray() {
  [ -z "$develop" ] && return
  fresh oldest-ray "$(hash_of requirements-oldest-ray.lock)" && [ -d "$venv/oldest-ray/ray" ]
}

install_python_packages() {
  if have_python_packages && have_oldest_ray; then
    line ok 'Python packages' 'as locked, all installed'
    return
  fi
  step 'Python packages' install_locked
  mark python-packages "$(packages_key '')"
  if [ -n "$develop" ]; then
    mark develop-python-packages "$(packages_key "$develop")"
    mark oldest-ray "$(hash_of requirements-oldest-ray.lock)"
  fi
}

# The oldest Ray is installed beside the others, on another core.
install_locked() {
  local lock requirements=() oldest=''
  if ! have_oldest_ray; then
    install_oldest &
    oldest=$!
    trap 'end_tree "$oldest"' EXIT # where the others cannot be installed
  fi
  for lock in $(locks "$develop"); do requirements+=(--requirement "$lock"); done
  pip install --no-compile --require-hashes "${requirements[@]}"
  compiled "$venv/lib"
  if [ -n "$oldest" ]; then wait "$oldest"; fi
  trap - EXIT
}

# The oldest Ray that may be there, with its dashboard, in a folder of its own: the tests of a Ray cluster that exists
# already put it before .venv.
install_oldest() {
  rm -rf "$venv/oldest-ray"
  pip install --no-compile --no-deps --require-hashes --target "$venv/oldest-ray" \
    --requirement requirements-oldest-ray.lock
  compiled "$venv/oldest-ray"
}

# --- pycaffe -------------------------------------------------------------------------------------

install_pycaffe() {
  if fresh pycaffe "$caffe_from"; then
    line ok 'pycaffe' "${caffe_from#wheel }"
    return
  fi
  rm -f "$stamps/pycaffe"
  if [[ "$caffe_from" == own\ * ]]; then
    step 'pycaffe (your own)' link_own_caffe "${caffe_from#own }"
  else
    have_wheel || build_wheel
    step 'pycaffe' install_wheel
  fi
  mark pycaffe "$caffe_from"
}

install_wheel() {
  rm -rf "$venv"/lib/python3*/site-packages/speedo-own-caffe*
  if ! pip install --no-index --no-deps --force-reinstall "$wheel_folder"/*.whl || ! check_pycaffe; then
    stop "the wheel in $wheel_folder cannot be used (the reason is above)" \
      'Remove that folder and run make setup again: it is then built again.'
  fi
}

build_wheel() {
  local archive="$SPEEDO_CACHE/source/$CAFFE_ARCHIVE" work="$SPEEDO_ROOT/build/pycaffe"
  step 'Caffe source' fetch_caffe_source "$archive"
  step 'Caffe build' compile_pycaffe "$venv_python" "$archive" "$work"
  step 'pycaffe wheel' pack_pycaffe "$venv_python" "$work" "$wheel_folder"
}

# link_own_caffe FOLDER: make this one package of FOLDER, and nothing else there, importable in .venv.
link_own_caffe() {
  local folder="$1" site links
  site="$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  links="$site/speedo-own-caffe"
  pip uninstall --yes pycaffe
  mkdir -p "$links"
  ln -sfn "$folder/caffe" "$links/caffe"
  echo "$links" >"$site/speedo-own-caffe.pth"
  if ! check_pycaffe; then
    # A plain pycaffe imports scikit-image as soon as it is imported.
    pip install --require-hashes --requirement requirements-own-caffe.lock
    check_pycaffe || stop "the pycaffe in $folder does not work with the Python packages of .venv (the reason is above)" \
      'Repair it, or let one be built: run make setup without SPEEDO_CAFFE_PYTHONPATH, and without it on PYTHONPATH.'
  fi
}

check_pycaffe() { (cd / && "$venv_python" "$SPEEDO_ROOT/scripts/pycaffe/check.py"); }

# --- PyTorch -------------------------------------------------------------------------------------

# What somebody has installed is kept if it works: it may be a build for a GPU.
install_torch() {
  local found
  found="$("$venv_python" -c 'from importlib import metadata; print(metadata.version("torch"))' 2>/dev/null || true)"
  if [ -n "$found" ] && fresh torch "$found"; then
    line ok 'PyTorch' "$found"
  elif [ -n "$found" ] || [ "${TORCH:-}" = 1 ]; then
    step 'PyTorch' bring_torch "$found"
    mark torch "$("$venv_python" -c 'from importlib import metadata; print(metadata.version("torch"))')"
  else
    line skip 'PyTorch' 'not wanted; for --engine torch: TORCH=1 make setup'
  fi
}

# bring_torch FOUND: install it unless this version is there, without changing what is locked, and try it.
bring_torch() {
  local locked
  if [ -z "$1" ]; then
    locked="$(mktemp)"
    sed -nE 's/^([A-Za-z0-9_.-]+==[^ ]+)( ;[^\\]*)?.*/\1\2/p' requirements-dev.lock >"$locked"
    pip install --no-compile --constraint "$locked" "torch==$torch_version.*"
    rm -f "$locked"
    compiled "$venv/lib"
  fi
  (cd / && "$venv_python" -c 'import torch; print("torch:", torch.__version__, torch.__file__)')
}

# --- the libraries of speedo/integrations --------------------------------------------------------

# Where PyTorch is, the tests need them.
install_libraries() {
  local key
  key="$(hash_of requirements-integrations.lock)"
  if [ -z "$develop" ] || [ ! -f "$stamps/torch" ]; then return; fi
  if fresh libraries "$key"; then
    line ok 'Libraries of loops' 'as locked, all installed'
    return
  fi
  step 'Libraries of loops' pip install --no-compile --no-deps --require-hashes \
    --requirement requirements-integrations.lock
  mark libraries "$key"
}

# --- speedo itself -------------------------------------------------------------------------------

install_speedo() {
  local key
  key="$(hash_of pyproject.toml packages/caffe-nets/pyproject.toml) $SPEEDO_ROOT"
  if fresh speedo "$key" && [ -x "$venv/bin/speedo" ]; then
    line ok 'speedo' 'installed from this folder'
    return
  fi
  step 'speedo' install_editable
  mark speedo "$key"
}

install_editable() {
  pip install --no-index --no-deps --no-build-isolation --editable packages/caffe-nets --editable .
  compiled speedo
}

check_everything() {
  check_pycaffe
  redis-server --version
  (cd / && "$venv_python" -c 'import speedo; print("speedo:", speedo.__file__)')
  pip check
}

main "$@"
