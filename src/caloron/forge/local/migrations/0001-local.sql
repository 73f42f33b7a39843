-- One row: the version of the newest change, and the last number given to an issue or pull request.
CREATE TABLE counter (
    version INTEGER NOT NULL,
    number  INTEGER NOT NULL
);
INSERT INTO counter VALUES (0, 0);

CREATE TABLE issues (
    number     INTEGER PRIMARY KEY,
    version    INTEGER NOT NULL,
    title      TEXT NOT NULL,
    body       TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    author     TEXT NOT NULL,
    labels     TEXT NOT NULL DEFAULT '[]',
    closed_by  TEXT NOT NULL DEFAULT '',
    marker_key TEXT NOT NULL
);
CREATE INDEX issues_version ON issues (version);
CREATE INDEX issues_marker ON issues (marker_key) WHERE marker_key <> '';

CREATE TABLE pulls (
    number       INTEGER PRIMARY KEY,
    version      INTEGER NOT NULL,
    title        TEXT NOT NULL,
    body         TEXT NOT NULL,
    state        TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed', 'merged')),
    author       TEXT NOT NULL,
    branch       TEXT NOT NULL,
    head         TEXT NOT NULL,
    -- main when this head was first seen: what main held already then was not merged by this one.
    base         TEXT NOT NULL,
    ended_by     TEXT NOT NULL DEFAULT '',
    merge_commit TEXT NOT NULL DEFAULT '',
    marker_key   TEXT NOT NULL
);
CREATE INDEX pulls_version ON pulls (version);
CREATE UNIQUE INDEX pulls_open ON pulls (branch) WHERE state = 'open';
CREATE INDEX pulls_marker ON pulls (marker_key) WHERE marker_key <> '';

CREATE TABLE comments (
    id         INTEGER PRIMARY KEY,
    version    INTEGER NOT NULL,
    issue      INTEGER NOT NULL,
    author     TEXT NOT NULL,
    body       TEXT NOT NULL,
    marker_key TEXT NOT NULL
);
CREATE INDEX comments_version ON comments (version);
CREATE INDEX comments_issue ON comments (issue);

CREATE TABLE reviews (
    id         INTEGER PRIMARY KEY,
    version    INTEGER NOT NULL,
    pull       INTEGER NOT NULL REFERENCES pulls (number),
    head       TEXT NOT NULL,
    verdict    TEXT NOT NULL CHECK (verdict IN ('approved', 'changes_requested', 'commented')),
    author     TEXT NOT NULL,
    body       TEXT NOT NULL,
    marker_key TEXT NOT NULL
);
CREATE INDEX reviews_version ON reviews (version);
CREATE INDEX reviews_pull ON reviews (pull);

-- The last tip that was seen of a branch; git holds the tip itself.
CREATE TABLE branches (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    tip     TEXT NOT NULL
) WITHOUT ROWID;
