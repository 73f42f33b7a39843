# Commits what an agent left in its workspace, and prints its commits as a bundle, or nothing if
# there are none; runs in the workspace, inside the sandbox.
# Arguments: the commit that the agent began with and that of main (empty: only what is not
# committed counts), how many bytes the files may take, the message. Exit code 4: they take more.
# Nothing is checked here, where the agent's settings apply: that is done where the commits arrive.
set -eu
base=$1 main=$2 limit=$3 message=$4

# What the agent made unreadable for itself is its work too.
find -P . -xdev \( -type d ! -perm -u=rwx -o -type f ! -perm -u=r \) -exec chmod u+rwX {} \;

# The agent is gone, so a lock that it left behind protects nothing.
find -P .git -name '*.lock' -type f -delete

# Repositories that the agent made inside its own become ordinary folders: git would record each
# as a link to a commit that nobody else has. Their histories move to Caloron's own folder.
git ls-files --stage -z | sed -z -n 's/^160000 [^\t]*\t//p' | git update-index --force-remove -z --stdin
number=0
while [ "$number" -lt 100 ]; do
    nested=$(git ls-files -z --others --exclude-standard | grep -z -m 1 '/$' | tr -d '\0')
    [ -n "$nested" ] || break
    mkdir -p .caloron
    mv -T -- "./${nested}.git" ".caloron/nested-$number-$$"
    number=$((number + 1))
done

# Holes in a file cost no space here, but git reads them, and each checkout has them: full sizes
# count, of each hard link too. What git ignores is not read.
used=$(git ls-files -z --cached --others --exclude-standard | sort -zu |
    du -c -l --apparent-size --block-size=1 --files0-from=- 2>/dev/null | tail -n 1)
used=${used%%[!0-9]*}
if [ "${used:-0}" -gt "$limit" ]; then
    echo "$used" >&2
    exit 4
fi

git add --all -- .

# An unfinished merge becomes the merge commit.
if git rev-parse --quiet --verify MERGE_HEAD >/dev/null ||
    ! git diff --cached --quiet --no-ext-diff; then
    git commit --quiet --no-verify --message="$message"
fi

[ -n "$base" ] || exit 0

# It fails where HEAD is no commit.
ahead=$(git rev-list --count "$base..HEAD" 2>/dev/null) || exit 3

# Commits on another branch, or in a stash, are its work too; those that the clone came with are
# not. They are merged with the commit that it began with: the files of a branch of main alone would
# undo that one.
if [ "$ahead" = 0 ]; then
    other=$(git for-each-ref --sort=-committerdate --no-merged="$base" --no-merged="$main" \
        --format='%(objectname)' refs/heads refs/stash | head -n 1)
    if [ -n "$other" ] && fork=$(git merge-base "$main" "$other") &&
        ! git diff --quiet --no-ext-diff "$fork" "$other" &&
        tree=$(git merge-tree --write-tree --no-messages "$base" "$other"); then
        commit=$(git commit-tree -p "$base" -m "$message" "$tree")
        git update-ref --no-deref HEAD "$commit"
        ahead=1
    fi
fi

[ "$ahead" = 0 ] || exec git bundle create --quiet - HEAD "^$base"
