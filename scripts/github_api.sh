#!/bin/sh
# Fetches GitHub's official OpenAPI description, once, into a cache outside the checkout.
# Prints the path of the file and nothing else; safe to call from several tests at a time.
set -eu

version=23.0.2
cache=${CALORON_TEST_CACHE:-$HOME/.cache/caloron-tests}
place=$cache/github-api-$version
file=$place/api.github.com.json

give_up() {
    echo "github_api.sh: $*" >&2
    exit 1
}

mkdir -p "$cache"
exec 9>"$cache/github-api.lock"
flock 9

if [ ! -e "$file" ]; then
    command -v npm >/dev/null ||
        give_up "npm is missing: install nodejs and npm, then the description is fetched once"
    # Fetched beside its place, so that half a description is never taken for one.
    unfinished=$place.unfinished
    rm -rf "$unfinished" "$place"
    mkdir -p "$unfinished"
    # Node trusts its own certificates only; what the system trusts is good enough here.
    system=/etc/ssl/certs/ca-certificates.crt
    [ ! -e "$system" ] || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$system}"
    (cd "$unfinished" &&
        npm pack --fetch-timeout=60000 --fetch-retries=2 --silent "@octokit/openapi@$version" >&2) ||
        give_up "the package @octokit/openapi $version could not be fetched"
    tar -xzf "$unfinished"/*.tgz -C "$unfinished" --strip-components=2 \
        package/generated/api.github.com.json || give_up "the package holds no description"
    rm "$unfinished"/*.tgz
    mv "$unfinished" "$place"
fi
echo "$file"
