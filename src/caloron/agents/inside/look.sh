# Prints how many commits an agent made since the commit $1; runs inside the sandbox.
# A history without a common commit with main cannot be merged, but the work in it counts: what
# HEAD holds becomes one commit on $1.
set -eu
git rev-parse --quiet --verify 'HEAD^{commit}' >/dev/null || exit 3
count=$(git rev-list --count "$1..HEAD")
if [ "$count" != 0 ] && ! git merge-base "$1" HEAD >/dev/null; then
    message='The state that the agent left in a history of its own'
    commit=$(git commit-tree -m "$message" -p "$1" 'HEAD^{tree}')
    git update-ref HEAD "$commit"
fi
echo "$count"
