#!/usr/bin/env bash
# Installs speedo into the image's virtual environment, and takes out of it what no container runs.
#
#   docker/install_speedo.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="$1"
backend="$PWD/build/backend"
# The build backend and what it needs, as locked, in an environment that is not kept.
python3.11 -m venv "$backend"
"$backend/bin/pip" install --no-cache-dir --require-hashes --requirement requirements-build.lock
"$backend/bin/pip" wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir build/speedo packages/caffe-nets .
"$venv/bin/pip" install --no-cache-dir --no-index --no-deps build/speedo/*.whl
"$venv/bin/pip" check

# Ray's parts for Java, for reinforcement learning and for browsers: a fifth of its size.
site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
rm -rf "$site"/ray/jars "$site"/ray/rllib "$site"/ray/dashboard/client
"$venv/bin/pip" uninstall --yes setuptools pip

cd /
"$venv/bin/python" -c 'import ray, ray.scripts.scripts, speedo.actors.launch'
"$venv/bin/speedo" --version
