CREATE TABLE jobs (
    job      TEXT PRIMARY KEY,
    cron     TEXT NOT NULL,
    handled  REAL NOT NULL,
    due      REAL,
    began    REAL,
    ended    REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    run_id   TEXT NOT NULL DEFAULT '',
    ok       INTEGER,
    error    TEXT NOT NULL DEFAULT ''
);
