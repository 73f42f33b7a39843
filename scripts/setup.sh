#!/usr/bin/env bash
# Makes .venv with everything that development needs; run again, it only does what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}

say() { echo "setup: $*" >&2; }
give_up() { say "$*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

debian_packages_missing() {
    command -v git >/dev/null || echo git
    command -v bwrap >/dev/null || echo bubblewrap
    # Counts the processes of a sprint in a test.
    command -v strace >/dev/null || echo strace
    if ! command -v "$python" >/dev/null; then
        echo python3 python3-venv
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo python3-venv
    fi
}

install_debian_packages() {
    local missing
    missing=$(debian_packages_missing | xargs)
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || give_up "please install: $missing"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        give_up "please run as root: apt-get install $missing"
    fi
    say "installing $missing"
    as_root apt-get update -qq
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
}

require_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || give_up \
        "Caloron needs Python 3.11 or newer, but $python is $("$python" -V 2>&1);" \
        "name another one with PYTHON=/path/to/python3.11 make venv"
}

make_environment() {
    # A checkout that was moved or a Python that was replaced leaves an environment that cannot run.
    if [ -e .venv ] && ! .venv/bin/pip --version >/dev/null 2>&1; then
        say "replacing a broken .venv"
        rm -rf .venv
    fi
    [ -e .venv ] || "$python" -m venv .venv
}

install_packages() {
    say "installing what requirements.lock names"
    local pip=(.venv/bin/pip --quiet --disable-pip-version-check install)
    "${pip[@]}" --require-hashes -r requirements.lock
    "${pip[@]}" --no-deps --no-build-isolation --editable .
}

install_debian_packages
require_python
make_environment
install_packages
say "ready: .venv/bin/caloron"
