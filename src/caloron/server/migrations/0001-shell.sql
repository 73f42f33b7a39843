-- One row for each agent of a sprint that was ever started here: its last run.
CREATE TABLE agents (
    sprint     TEXT NOT NULL,
    agent      TEXT NOT NULL,
    task       TEXT NOT NULL,
    run        INTEGER NOT NULL,
    -- starting, running, ended
    state      TEXT NOT NULL CHECK (state IN ('starting', 'running', 'ended')),
    run_dir    TEXT NOT NULL,
    workspace  TEXT NOT NULL DEFAULT '',
    base       TEXT NOT NULL DEFAULT '',
    pid        INTEGER NOT NULL DEFAULT 0,
    -- With the pid and the boot id, the start time names one process for ever.
    started    INTEGER NOT NULL DEFAULT 0,
    boot       TEXT NOT NULL DEFAULT '',
    began_at   TEXT NOT NULL,
    ended_at   TEXT,
    -- Null once it has ended: nobody saw how.
    exit_code  INTEGER,
    PRIMARY KEY (sprint, agent)
);

CREATE TABLE heartbeats (
    sprint  TEXT NOT NULL,
    agent   TEXT NOT NULL,
    at      TEXT NOT NULL,
    status  TEXT NOT NULL,
    tokens  INTEGER NOT NULL,
    PRIMARY KEY (sprint, agent)
);

-- Every folder that an agent was ever let into: git of ours never runs there.
CREATE TABLE workspaces (
    path TEXT PRIMARY KEY
);
