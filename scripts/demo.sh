#!/usr/bin/env bash
# A whole sprint with the scripted agent on a sample project, in .demo/, from an empty home.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$PWD/.venv/bin
PATH=$program:$PATH
demo=$PWD/.demo
export CALORON_HOME=$demo/home
# It would go before the demo's own script.
unset CALORON_STUB_FIXTURE
sample=$demo/tally
verify="python3 -m unittest discover -q -s tests"

bold='' normal=''
if [ -t 1 ]; then bold=$'\033[1m' normal=$'\033[0m'; fi
step() { printf '\n%s== %s%s\n' "$bold" "$*" "$normal"; }
# Nobody's git configuration decides how the demo looks.
plain_git() { GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git "$@"; }

if [ -e "$demo" ]; then
    caloron stop --project demo >/dev/null 2>&1 || true
    rm -rf "$demo"
fi
mkdir -p "$demo"

step "A small Python project with its tests: $sample"
cp -r examples/demo/project "$sample"
plain_git -C "$sample" init --quiet --initial-branch=main
plain_git -C "$sample" add --all
plain_git -C "$sample" -c user.name=Ada -c user.email=ada@example.org \
    commit --quiet --message "Read numbers that people type"
(cd "$sample" && bash -c "$verify")

step "A Caloron project with its own forge"
caloron init demo --framework stub --repo "$sample"
fixture=$PWD/examples/demo/fixture.json
# In a repository, commands act on the project that was made from it.
cd "$sample"
caloron config set verify "$verify"
caloron config set stub_fixture "$fixture"

step "The sprint: four tasks, two of them side by side, one sent back by its reviewer"
caloron sprint "Let tally report mean, median, range and deviation of numbers" --yes

forge=$CALORON_HOME/projects/demo/forge.git
step "What was merged"
plain_git -C "$forge" log --graph --oneline main
caloron pr list

step "Brought into the branch that is checked out, and tested there"
caloron apply
(
    cd "$sample"
    python3 -m unittest discover -s tests
    echo "\$ python3 -m tally 1 2 3 6"
    python3 -m tally 1 2 3 6
)

rejected=$(caloron pr list | sed -n 's/^#\([0-9]*\) .*\[averages\].*/\1/p')
step "Look around"
cat <<END
  cd $sample                     the code, with what was merged
  export CALORON_HOME=$CALORON_HOME PATH=$program:\$PATH
  caloron history                    the sprint
  caloron pr show $rejected                  the review that said no, and the one that said yes
  caloron logs averages              what the agents of that task wrote
END
