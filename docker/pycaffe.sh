#!/usr/bin/env bash
# Installs pycaffe for an interpreter while the image is built: a wheel that docker/wheels offers, or a new one.
#
#   docker/pycaffe.sh PYTHON
#
# docker/wheels/KEY/*.whl is taken if KEY is that of this interpreter, system and build, as in
# ~/.cache/speedo/pycaffe; any other wheel there is left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/build_pycaffe.sh
source scripts/build_pycaffe.sh

python="$1"
offered="docker/wheels/$(pycaffe_key "$python")"
if ! compgen -G "$offered/*.whl" >/dev/null; then
  mapfile -t packages < <(names scripts/packages/pycaffe-build.txt)
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3.11-dev "${packages[@]}"
  scripts/build_pycaffe.sh "$python" "$offered"
fi
"$python" -m pip install --no-cache-dir --no-index --no-deps "$offered"/*.whl
cd /
"$python" "$SPEEDO_ROOT/scripts/pycaffe/check.py"
