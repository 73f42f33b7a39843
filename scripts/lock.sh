#!/usr/bin/env bash
# Writes requirements.lock and constraints.txt anew from pyproject.toml, with every published hash.
# Needs pip-tools in the Python named by $PYTHON. Set UPGRADE=1 to take newer versions.
# Use the Python of Debian 12 (3.11.2): some packages dropped it while they still support 3.11.7.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
# Wheels that happen to lie on this machine would add hashes that nobody else can check.
unset PIP_FIND_LINKS PIP_NO_INDEX PIP_EXTRA_INDEX_URL

"$python" -m piptools compile pyproject.toml \
    --extra dev --extra docs --all-build-deps --allow-unsafe --generate-hashes --strip-extras --no-config \
    --no-header --no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
    --no-emit-options --quiet ${UPGRADE:+--upgrade} --output-file requirements.lock

sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' requirements.lock >constraints.txt
echo "requirements.lock: $(wc -l <constraints.txt) packages, $(grep -c -- --hash requirements.lock) hashes"
