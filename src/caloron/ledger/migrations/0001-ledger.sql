CREATE TABLE sprints (
    id         TEXT PRIMARY KEY,
    number     INTEGER NOT NULL UNIQUE,
    goal       TEXT NOT NULL,
    phase      TEXT NOT NULL,
    created_at REAL NOT NULL,
    ended_at   REAL,
    -- Raised by every tick that changes something: the compare-and-swap of the tick.
    version    INTEGER NOT NULL,
    data       BLOB NOT NULL
);

CREATE TABLE tasks (
    sprint   TEXT NOT NULL REFERENCES sprints (id),
    id       TEXT NOT NULL,
    position INTEGER NOT NULL,
    status   TEXT NOT NULL,
    reason   TEXT NOT NULL,
    data     BLOB NOT NULL,
    PRIMARY KEY (sprint, id)
) WITHOUT ROWID;

-- The newest picture of each forge object that the sprint has seen.
CREATE TABLE observations (
    sprint  TEXT NOT NULL REFERENCES sprints (id),
    object  TEXT NOT NULL,
    version INTEGER NOT NULL,
    data    BLOB NOT NULL,
    PRIMARY KEY (sprint, object)
) WITHOUT ROWID;

-- Facts that the next tick takes in; consumed rows are removed in the tick's own transaction.
CREATE TABLE inbox (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    sprint TEXT NOT NULL REFERENCES sprints (id),
    key    TEXT NOT NULL,
    data   BLOB NOT NULL,
    UNIQUE (sprint, key)
);

-- The journal of effects: planned by a tick, intended and recorded by the one executor.
CREATE TABLE actions (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    sprint     TEXT NOT NULL REFERENCES sprints (id),
    task       TEXT NOT NULL,
    key        TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,
    data       BLOB NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('planned', 'intended', 'done', 'failed', 'dropped')),
    tries      INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    note       TEXT NOT NULL DEFAULT ''
);
CREATE INDEX actions_open ON actions (sprint, task, id) WHERE state IN ('planned', 'intended');

CREATE TABLE kv (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
