"""The context of a repository before a sprint: languages, CI, rules, recent commits."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from caloron.git.mirror import Mirror

_LANGUAGES = {
    "c": "C", "cc": "C++", "clj": "Clojure", "cpp": "C++", "cs": "C#", "css": "CSS",
    "dart": "Dart", "erl": "Erlang", "ex": "Elixir", "exs": "Elixir", "go": "Go", "h": "C",
    "hpp": "C++", "hs": "Haskell", "html": "HTML", "java": "Java", "jl": "Julia",
    "js": "JavaScript", "jsx": "JavaScript", "kt": "Kotlin", "lua": "Lua", "m": "Objective-C",
    "mjs": "JavaScript", "ml": "OCaml", "nix": "Nix", "php": "PHP", "pl": "Perl", "py": "Python",
    "pyi": "Python", "r": "R", "rb": "Ruby", "rs": "Rust", "scala": "Scala", "scss": "CSS",
    "sh": "Shell", "sql": "SQL", "svelte": "Svelte", "swift": "Swift", "tf": "Terraform",
    "ts": "TypeScript", "tsx": "TypeScript", "vue": "Vue", "zig": "Zig",
}  # fmt: skip
_CI = (
    ".github/workflows/*.yml", ".github/workflows/*.yaml", ".gitea/workflows/*.yml",
    ".gitea/workflows/*.yaml", ".forgejo/workflows/*.yml", ".forgejo/workflows/*.yaml",
    ".gitlab-ci.yml", ".circleci/config.yml", ".travis.yml", ".drone.yml", ".woodpecker.yml",
    ".woodpecker/*.yml", ".woodpecker/*.yaml", "azure-pipelines.yml", "Jenkinsfile", ".cirrus.yml",
    "appveyor.yml", ".buildkite/*.yml",
)  # fmt: skip
#: The files in which a forge expects rules for contributors; the first of a kind counts.
_RULES = {
    "contributing": ("CONTRIBUTING*", ".github/CONTRIBUTING*", ".gitea/CONTRIBUTING*",
                     "docs/CONTRIBUTING*"),
    "pull request template": (
        ".github/PULL_REQUEST_TEMPLATE*", ".gitea/PULL_REQUEST_TEMPLATE*", "PULL_REQUEST_TEMPLATE*",
        "docs/PULL_REQUEST_TEMPLATE*", ".github/PULL_REQUEST_TEMPLATE/*",
    ),
    "code owners": ("CODEOWNERS", ".github/CODEOWNERS", ".gitea/CODEOWNERS", "docs/CODEOWNERS"),
}  # fmt: skip
_COMMITS = 5
_LONGEST_RULE = 8_000


class Commit(msgspec.Struct, frozen=True):
    """One commit in one line."""

    sha: str
    message: str
    author: str
    date: str


class Rule(msgspec.Struct, frozen=True):
    """A file that tells contributors what to do."""

    kind: str
    path: str
    text: str


class RepoContext(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a repository that a plan needs."""

    description: str = ""
    default_branch: str = "main"
    #: Number of files by language, most first.
    languages: dict[str, int] = msgspec.field(default_factory=dict)
    ci: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    recent_commits: tuple[Commit, ...] = ()
    #: None: unknown.
    open_issues: int | None = None
    files: int = 0


def ci_files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the files by which a forge, or a service beside it, checks pushes."""
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, ci) for ci in _CI))


def read_repository_context(
    mirror: Mirror, commit: str, *, description: str = "", open_issues: int | None = None
) -> RepoContext:
    """Read the facts from a commit of our copy; the caller adds those of the forge."""
    names = list(mirror.files(commit))
    return RepoContext(
        description=description,
        default_branch=mirror.main,
        languages=_languages(names),
        ci=ci_files(names),
        rules=_rules(mirror, commit, names),
        recent_commits=tuple(Commit(*line) for line in mirror.log(commit, _COMMITS)),
        open_issues=open_issues,
        files=len(names),
    )


def page(context: RepoContext) -> str:
    """Return the facts in lines, for a planner."""
    languages = ", ".join(f"{name} ({count})" for name, count in context.languages.items())
    issues = "" if context.open_issues is None else str(context.open_issues)
    lines = [
        ("Description", " ".join(context.description.split())),
        ("Branch that work is merged into", context.default_branch),
        ("Files", f"{context.files}"),
        ("Languages, by number of files", languages),
        ("CI", ", ".join(context.ci)),
        ("Open issues", issues),
        ("Rules for contributors", ", ".join(rule.path for rule in context.rules)),
    ]
    facts = [f"{name}: {value}" for name, value in lines if value]
    commits = [f"- {c.sha} {c.date} {c.author}: {c.message}" for c in context.recent_commits]
    return "\n".join([*facts, "Last commits:", *commits])


def rules_page(context: RepoContext) -> str:
    """Return the rules of the repository for all who change it."""
    texts = [f"{rule.path}:\n{rule.text.strip()}" for rule in context.rules if rule.text.strip()]
    return "\n\n".join(texts)


def _languages(names: list[str]) -> dict[str, int]:
    endings = (PurePosixPath(name).suffix.lstrip(".").lower() for name in names)
    counts = Counter(_LANGUAGES[ending] for ending in endings if ending in _LANGUAGES)
    return dict(counts.most_common())


def _rules(mirror: Mirror, commit: str, names: list[str]) -> tuple[Rule, ...]:
    rules = []
    for kind, patterns in _RULES.items():
        paths = (n for pattern in patterns for n in names if _is_named(n, pattern))
        if path := next(paths, ""):
            rules.append(Rule(kind, path, mirror.read(commit, path, _LONGEST_RULE)))
    return tuple(rules)


def _is_named(name: str, pattern: str) -> bool:
    """Match as forges do: in the folder that the pattern names, ignoring case."""
    same_depth = name.count("/") == pattern.count("/")
    return same_depth and fnmatch.fnmatchcase(name.lower(), pattern.lower())
