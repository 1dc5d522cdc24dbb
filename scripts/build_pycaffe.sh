#!/usr/bin/env bash
# Builds pycaffe from Debian's source package into a wheel.
#
#   scripts/build_pycaffe.sh PYTHON FOLDER   the wheel for this interpreter (with NumPy) is left in FOLDER
#
# Needs the Debian packages of scripts/packages/pycaffe-run-debian-*.txt and pycaffe-build.txt; `make setup` installs
# them and calls the same functions. What it changes in the source: scripts/pycaffe/edits.py. How it
# compiles: scripts/pycaffe/CMakeLists.txt.
#
#   SPEEDO_CAFFE_SOURCE=FILE   the source archive, fetched by hand
#   SPEEDO_CAFFE_MIRROR=URI    a Debian mirror, or archive of old releases, that has the suite
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The last release that has the package. Debian's patches to it touch its CMake files, which are not used
# here, and OpenCV's names, which edits.py replaces; so the original archive is all that is needed.
CAFFE_SUITE=bullseye
CAFFE_PACKAGE=1.0.0+git20180821.99bd997-8
CAFFE_VERSION=1.0.0+git20180821
CAFFE_ARCHIVE=caffe_1.0.0+git20180821.99bd997.orig.tar.gz
CAFFE_SHA256=e0eb3f06794f7402c77b7dec8e8480273ee1a1bb192e9122b621a69d4147ad0c

has_right_sum() { echo "$2  $1" | sha256sum --check --status 2>/dev/null; }

# fetch_caffe_source FILE: put the verified source archive there.
fetch_caffe_source() {
  local target="$1" mirror
  mkdir -p "$(dirname "$target")"
  if [ -n "${SPEEDO_CAFFE_SOURCE:-}" ]; then
    [ -f "$SPEEDO_CAFFE_SOURCE" ] || stop "SPEEDO_CAFFE_SOURCE is $SPEEDO_CAFFE_SOURCE: no such file"
    take_archive "$SPEEDO_CAFFE_SOURCE" "$target"
    return
  fi
  if [ -f "$target" ] && has_right_sum "$target" "$CAFFE_SHA256"; then
    echo "$target is there"
    return
  fi
  command -v apt-get >/dev/null || stop 'there is no apt-get here to fetch the source with' "${by_hand[@]}"
  for mirror in $(debian_mirrors); do
    if fetch_from "$mirror" "$target"; then return; fi
  done
  stop "no Debian mirror that this machine is set up with has Caffe's source (suite $CAFFE_SUITE, version $CAFFE_PACKAGE)" \
    "${by_hand[@]}"
}

by_hand=(
  "Get $CAFFE_ARCHIVE by hand, from a mirror or archive of old Debian releases"
  "(source package caffe, $CAFFE_SUITE), and run: make setup SPEEDO_CAFFE_SOURCE=/path/to/$CAFFE_ARCHIVE"
  'or name such a mirror: make setup SPEEDO_CAFFE_MIRROR=URI'
  'or bring a pycaffe of your own: make setup SPEEDO_CAFFE_PYTHONPATH=/folder/that/holds/caffe'
)

# take_archive FROM TO: copy the archive if it is the one that this script knows.
take_archive() {
  if ! has_right_sum "$1" "$CAFFE_SHA256"; then
    stop "$1 is not the source archive that is expected" \
      "SHA-256 expected: $CAFFE_SHA256" \
      "SHA-256 found:    $(sha256sum "$1" | cut -d ' ' -f 1)" \
      "Nothing was unpacked from it. Remove it, or set SPEEDO_CAFFE_SOURCE to the right $CAFFE_ARCHIVE."
  fi
  if [ ! "$1" -ef "$2" ]; then
    if ! cp "$1" "$2.part" || ! mv "$2.part" "$2"; then stop "$1 could not be copied to $2"; fi
  fi
  echo "$2 has the expected SHA-256"
}

# debian_mirrors: where this machine gets Debian itself from, as apt reads its own configuration.
debian_mirrors() {
  if [ -n "${SPEEDO_CAFFE_MIRROR:-}" ]; then
    echo "$SPEEDO_CAFFE_MIRROR"
    return
  fi
  # shellcheck disable=SC2016 # apt's variables, not the shell's
  apt-get indextargets --format '$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F '|' '$1 == "Debian" && $2 == "main" && !seen[$3]++ { print $3 }'
}

# fetch_from MIRROR FILE: `apt-get source` with a configuration and lists of its own; /etc/apt is only read.
fetch_from() {
  local mirror="$1" target="$2" work keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed=''
  work="$(mktemp -d)"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  [ -f "$keyring" ] && signed="[signed-by=$keyring] "
  echo "deb-src $signed$mirror $CAFFE_SUITE main" >"$work/sources.list"
  # The machine's hooks after an update are for its own lists, and may need root.
  cat >"$work/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
CONF
  if apt-get --config-file "$work/apt.conf" --error-on=any update &&
    (cd "$work" && apt-get --config-file "$work/apt.conf" source --download-only --tar-only "caffe=$CAFFE_PACKAGE") &&
    [ -f "$work/$CAFFE_ARCHIVE" ]; then
    take_archive "$work/$CAFFE_ARCHIVE" "$target"
    rm -rf "$work"
    return 0
  fi
  rm -rf "$work"
  return 1
}

# compile_pycaffe PYTHON ARCHIVE WORK: unpack, edit and compile below WORK.
compile_pycaffe() {
  local python="$1" archive="$2" work="$3" include boost
  include="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  [ -f "$include/Python.h" ] || stop "$include/Python.h is missing: $python came without its headers" \
    "Install them (for Debian's /usr/bin/python3.11: python3.11-dev), or choose another one: make setup PYTHON=/path/to/python"
  boost="boost_python$("$python" -c 'import sys; print(f"{sys.version_info.major}{sys.version_info.minor}")')"
  rm -rf "$work"
  mkdir -p "$work/source"
  tar --extract --file "$archive" --directory "$work/source"
  "$python" "$SPEEDO_ROOT/scripts/pycaffe/edits.py" "$work/source"
  cmake -S "$SPEEDO_ROOT/scripts/pycaffe" -B "$work/cmake" -DCMAKE_BUILD_TYPE=Release \
    -DCAFFE_SOURCE="$work/source" -DCAFFE_VERSION="${CAFFE_VERSION%%+*}" -DBOOST_PYTHON="$boost" \
    -DPYTHON_INCLUDE="$include" -DNUMPY_INCLUDE="$("$python" -c 'import numpy; print(numpy.get_include())')"
  # Flags of the make that runs the setup are not meant for this one.
  env -u MAKEFLAGS -u MAKELEVEL cmake --build "$work/cmake" --parallel "$(compile_jobs)"
}

# compile_jobs: one for each core, and at least 1.5 GiB of free memory for each.
compile_jobs() {
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)"
  if ((memory < cores)); then cores="$memory"; fi
  echo "$((cores > 0 ? cores : 1))"
}

# pack_pycaffe PYTHON WORK FOLDER: the compiled tree as a wheel, checked before it is given its place.
pack_pycaffe() {
  local python="$1" work="$2" folder="$3" wheel packages
  mkdir -p "$work/wheel" "$work/try" "$folder"
  packages="$(run_packages)"
  wheel="$("$python" "$SPEEDO_ROOT/scripts/pycaffe/make_wheel.py" "$work/source" "$work/cmake" "$work/wheel" "$CAFFE_VERSION" \
    ${packages:+"$packages"})"
  "$python" -m zipfile --extract "$wheel" "$work/try"
  PYTHONPATH="$work/try" "$python" "$SPEEDO_ROOT/scripts/pycaffe/check.py"
  cp "$wheel" "$folder/.part"
  mv "$folder/.part" "$folder/$(basename "$wheel")"
  rm -rf "$work"
}

# pycaffe_key PYTHON: everything that makes one built wheel differ from another.
pycaffe_key() {
  local python="$1" inputs="$SPEEDO_ROOT/scripts/pycaffe" packages
  packages="$(run_packages)"
  printf '%s-%s-%s-%s\n' \
    "$("$python" -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')" "$(uname -m)" \
    "$(awk -F '=' '$1 == "ID" || $1 == "VERSION_ID" { gsub("\"", "", $2); printf "%s", $2 }' /etc/os-release)" \
    "$(hash_of "$SPEEDO_ROOT/scripts/build_pycaffe.sh" "$inputs/CMakeLists.txt" "$inputs/edits.py" "$inputs/make_wheel.py" \
      ${packages:+"$packages"})"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  (($# == 2)) || stop "usage: scripts/build_pycaffe.sh PYTHON FOLDER"
  build_work="$(mktemp -d)"
  trap 'rm -rf "$build_work"' EXIT
  fetch_caffe_source "$SPEEDO_CACHE/source/$CAFFE_ARCHIVE"
  compile_pycaffe "$1" "$SPEEDO_CACHE/source/$CAFFE_ARCHIVE" "$build_work/work"
  pack_pycaffe "$1" "$build_work/work" "$2"
fi
