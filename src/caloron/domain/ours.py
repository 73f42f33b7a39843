"""What on the forge is ours and what is a person's: by marker and account, never by one alone.

The user's own account may be the one that we write with, so that the same login stands on both.
"""

from __future__ import annotations

from caloron.domain.observations import CommentSeen, IssueSeen, PullSeen, ReviewSeen, marker_key
from caloron.domain.sprint import Sprint


def is_ours(sprint: Sprint, seen: IssueSeen | PullSeen | ReviewSeen | CommentSeen) -> bool:
    """Whether we wrote it: our marker on an object of one of our accounts."""
    return seen.author in (sprint.author, sprint.reviewer or sprint.author) and bool(
        marker_key(seen.body)
    )
