"""What on the forge is ours and what is a person's: by marker and account, never by one alone.

The user's own account may be the one that we write with, so that the same login stands on both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from caloron.domain.observations import CommentSeen, IssueSeen, PullSeen, ReviewSeen, marker_key
from caloron.domain.sprint import Sprint


def is_ours(sprint: Sprint, seen: IssueSeen | PullSeen | ReviewSeen | CommentSeen) -> bool:
    """Whether we wrote it: our marker on an object of one of our accounts."""
    return seen.author in (sprint.author, sprint.reviewer or sprint.author) and bool(
        marker_key(seen.body)
    )


def last_number(project: str, issues: Iterable[IssueSeen]) -> int:
    """The highest number of a sprint of this name that stands on a forge, whoever began it.

    Another home, or a project that was deleted since, may have used the same name; objects and
    branches of its sprints must not be taken for those of a new one.
    """
    form = re.compile(rf"issue/{re.escape(project)}-(\d{{1,6}})/")
    found = (form.match(marker_key(issue.body)) for issue in issues)
    return max((int(one[1]) for one in found if one), default=0)
