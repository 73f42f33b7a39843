# Commits what an agent left in its workspace; runs there, inside the sandbox.
# Standard input: the message. Arguments: the commit that the agent began with and that of main
# (empty: nobody asks what it committed itself), and folders whose new files are not its work.
set -eu
export GIT_LITERAL_PATHSPECS=1
base=$1 main=$2
shift 2
message=$(mktemp)
cat >"$message"
list=$(mktemp)

# What the agent made unreadable for itself is its work too.
find -P . -xdev \( -type d ! -perm -u=rwx -o -type f ! -perm -u=r \) -exec chmod u+rwX {} \;

# The agent is gone, so a lock that it left behind protects nothing.
find -P .git -name '*.lock' -type f -delete

# Repositories that the agent made inside its own become ordinary folders: git would record each
# as a link to a commit that nobody else has. Their histories move to Caloron's own folder.
git ls-files --stage -z | sed -z -n 's/^160000 [^\t]*\t//p' | git update-index --force-remove -z --stdin
number=0
while [ "$number" -lt 100 ]; do
    nested=$(git ls-files -z --others --exclude-standard | grep -z '/$' | head -z -n 1 | tr -d '\0')
    [ -n "$nested" ] || break
    mkdir -p .caloron
    mv -T -- "./${nested}.git" ".caloron/nested-$number-$$"
    number=$((number + 1))
done

git add --all -- .

# Takes files in these folders that the commit $1 (empty: HEAD) does not have out of the index.
leave_out() {
    since=$1
    shift
    git diff --cached --name-only --diff-filter=A --no-renames --no-ext-diff -z \
        ${since:+"$since"} -- "$@" >"$list"
    git update-index --force-remove -z --stdin <"$list"
}

# The agent may have changed what is ignored.
leave_out "" "$@"

# An unfinished merge becomes the merge commit.
if git rev-parse --quiet --verify MERGE_HEAD >/dev/null ||
    ! git diff --cached --quiet --no-ext-diff; then
    git commit --quiet --no-verify --file="$message"
fi

[ -n "$base" ] || exit 0

# Work that it left on another branch, or in a stash, is its work all the same.
if [ "$(git rev-list --count "$base..HEAD")" = 0 ]; then
    other=$(git for-each-ref --sort=-committerdate --no-merged="$base" \
        --format='%(objectname)' refs/heads refs/stash | head -n 1)
    if [ -n "$other" ]; then
        commit=$(git commit-tree -p "$base" -F "$message" "$other^{tree}")
        git update-ref --no-deref HEAD "$commit"
    fi
fi

commits() {
    git log --no-renames --no-ext-diff -m "$@"
}
ours="$GIT_AUTHOR_NAME <$GIT_AUTHOR_EMAIL> $GIT_COMMITTER_NAME <$GIT_COMMITTER_EMAIL>"

# What it committed in those folders itself must not be in the history either, nor may it speak for
# somebody else: one commit of the user's then has all the rest.
if commits --format=%H --diff-filter=A "$base..HEAD" --not "$main" -- "$@" | grep -q . ||
    commits --format='%an <%ae> %cn <%ce>' --no-patch "$base..HEAD" --not "$main" |
    grep -q -v -F -x -e "$ours" -e ''; then
    git read-tree HEAD
    leave_out "$base" "$@"
    merged=
    if git merge-base --is-ancestor "$main" HEAD && ! git merge-base --is-ancestor "$main" "$base"; then
        merged=$main
    fi
    commit=$(git commit-tree -p "$base" ${merged:+-p "$merged"} -F "$message" "$(git write-tree)")
    git update-ref --no-deref HEAD "$commit"
fi
