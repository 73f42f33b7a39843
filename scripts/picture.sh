#!/usr/bin/env bash
# Records docs/sprint.svg anew: the demo's sprint as it looks at a terminal (needs tmux).
set -euo pipefail
cd "$(dirname "$0")/.."
make venv >/dev/null

place=$(mktemp -d)
socket=$place/tmux
clean_up() {
    tmux -S "$socket" kill-server 2>/dev/null || true
    # Who was in there may write a last word.
    rm -rf "$place" || { sleep 1; rm -rf "$place"; }
}
trap clean_up EXIT
python=$PWD/.venv/bin/python picture=$PWD/scripts/picture.py
export HOME=$place PATH=$PWD/.venv/bin:$PATH
unset CALORON_HOME

mkdir -p ~/src ~/frames
cp -r examples/demo/project ~/src/tally
git -C ~/src/tally init --quiet --initial-branch=main
git config --global user.name Ada
git config --global user.email ada@example.org
git -C ~/src/tally add --all
git -C ~/src/tally commit --quiet --message "Read numbers that people type"
# The scripted agents take a moment, so that there is something to see.
"$python" - examples/demo/fixture.json ~/fixture.json <<'PY'
import json, sys
script = json.load(open(sys.argv[1]))
for response in script["responses"]:
    response["sleep_s"] = 1.5
json.dump(script, open(sys.argv[2], "w"))
PY
caloron init tally --framework stub --repo ~/src/tally --verify "python3 -m unittest discover -q -s tests" >/dev/null
caloron config set stub_fixture ~/fixture.json --project tally >/dev/null

screen() { tmux -S "$socket" "$@"; }
screen -f /dev/null new-session -d -x 96 -y 32 -c ~/src/tally "PS1='$ ' exec bash --norc --noprofile -i"
number=0
record() {
    number=$((number + 1))
    screen capture-pane -p -e -J >"$HOME/frames/$(printf %04d "$number")"
}
# Until these words are on the screen.
record_until() {
    local end=$((SECONDS + 120))
    until record && grep -qF -- "$1" "$HOME/frames/$(printf %04d "$number")"; do
        if [ "$SECONDS" -gt "$end" ]; then
            echo "picture: never saw: $1" >&2
            screen capture-pane -p >&2
            exit 1
        fi
        sleep 0.2
    done
}

sleep 1
screen send-keys -l 'caloron sprint "Let tally report mean, median, range and deviation"'
record
screen send-keys Enter
record_until "[r]eplan"
screen send-keys -l y
record
screen send-keys Enter
record_until "tasks are done"
sleep 0.5
screen send-keys -l 'caloron apply'
record
screen send-keys Enter
record_until "Fast-forwarded"
sleep 0.5
record

"$python" "$picture" "$HOME" ~/frames docs/sprint.svg
