#!/bin/sh
# Installs the Claude Code that the tests run, once, into a cache outside the checkout.
# Prints the path of its program and nothing else; safe to call from several tests at a time.
set -eu

version=2.1.197
cache=${CALORON_TEST_CACHE:-$HOME/.cache/caloron-tests}
place=$cache/claude-code-$version
program=$place/node_modules/.bin/claude

mkdir -p "$cache"
exec 9>"$cache/claude-code.lock"
flock 9

if [ ! -x "$program" ]; then
    if ! command -v npm >/dev/null; then
        if [ "$(id -u)" != 0 ]; then
            echo "npm is missing: install nodejs and npm, then try again" >&2
            exit 1
        fi
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends nodejs npm >&2
    fi
    # Built beside its place, so that an installation that was cut short is never taken for one.
    unfinished=$place.unfinished
    rm -rf "$unfinished" "$place"
    mkdir -p "$unfinished"
    # Node trusts its own certificates only; what the system trusts is good enough here.
    system=/etc/ssl/certs/ca-certificates.crt
    [ ! -e "$system" ] || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$system}"
    npm install --fetch-timeout=60000 --fetch-retries=2 --silent --no-audit --no-fund --prefix "$unfinished" \
        "@anthropic-ai/claude-code@$version" >&2
    "$unfinished/node_modules/.bin/claude" --version >&2
    mv "$unfinished" "$place"
fi
echo "$program"
