#!/usr/bin/env bash
# Draws docs/sprint.svg anew from a real run of the demo's sprint in a terminal (needs tmux).
set -euo pipefail
cd "$(dirname "$0")/.."
make venv >/dev/null
scripts/demo.sh >/dev/null

export CALORON_HOME=$PWD/.demo/home PATH=$PWD/.venv/bin:$PATH
fixture=$PWD/.demo/picture.json
# The scripted agents take a moment, so that there is something to see.
python3 - examples/demo/fixture.json "$fixture" <<'PY'
import json, sys
script = json.load(open(sys.argv[1]))
for response in script["responses"]:
    response["sleep_s"] = 1.2
json.dump(script, open(sys.argv[2], "w"))
PY
# The demo took its result; the picture shows how it came about.
git -C .demo/tally reset --quiet --hard "$(git -C .demo/tally rev-list --max-parents=0 HEAD)"
caloron init picture --repo .demo/tally --verify "python3 -m unittest discover -q -s tests" >/dev/null
caloron config set stub_fixture "$fixture" --project picture >/dev/null

session=caloron-picture-$$
tmux new-session -d -s "$session" -x 100 -y 16 \
    "PS1='$ ' caloron sprint 'Let tally report mean, median, range and deviation' --yes --project picture; sleep 30"
trap 'tmux kill-session -t "$session" 2>/dev/null || true' EXIT
until caloron status --project picture | grep -q '1/4 tasks done'; do sleep 0.2; done
sleep 4
middle=$(tmux capture-pane -p -t "$session")
until caloron status --project picture | grep -q 'ended'; do sleep 0.2; done
sleep 1
end=$(tmux capture-pane -p -t "$session")
printf '%s\n\n%s\n' "$middle" "$end" | .venv/bin/python -c '
import re, sys
from rich.console import Console
from rich.text import Text
lines = [l for l in sys.stdin.read().splitlines() if l.strip()]
console = Console(record=True, width=100, file=open("/dev/null", "w"))
text = Text("\n".join(["$ caloron sprint \"Let tally report mean, median, range and deviation\"", *lines]))
for word, style in {"Done": "green", "InReview": "blue", "InProgress": "cyan", "Pending": "dim"}.items():
    text.highlight_regex(rf"\b{word}\b", style)
text.highlight_regex(r"(?m)^(task|picture-1) .*$", "bold")
console.print(text)
svg = console.export_svg(title="caloron")
# The picture must not fetch fonts from anywhere.
svg = re.sub(r"<!--.*?-->|@font-face \{.*?\}", "", svg, flags=re.DOTALL)
open("docs/sprint.svg", "w").write(svg)
'
