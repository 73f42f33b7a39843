-- The journal of what is said on the forge for an agent that works in no sprint: as `actions`, with
-- the agent in the place of the sprint.
CREATE TABLE cycle_actions (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    sprint     TEXT NOT NULL,
    task       TEXT NOT NULL,
    key        TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,
    data       BLOB NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('planned', 'intended', 'done', 'failed', 'dropped')),
    tries      INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    note       TEXT NOT NULL DEFAULT ''
);
CREATE INDEX cycle_actions_open ON cycle_actions (sprint, task, id) WHERE state IN ('planned', 'intended');
