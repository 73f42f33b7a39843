-- The file of agent-state 0.3, which goes on working on it: nothing of ours is in this part, and each
-- step is a no-op on a file that agent-state made.
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    TEXT PRIMARY KEY,
    applied_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS work_items (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    payload     TEXT NOT NULL,
    status      TEXT NOT NULL,
    owner_agent TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    notes       TEXT,
    CHECK (status IN ('pending', 'in_flight', 'waiting_human', 'done', 'failed', 'cancelled'))
);
CREATE INDEX IF NOT EXISTS idx_work_items_kind_status ON work_items (kind, status, updated_at DESC);
CREATE INDEX IF NOT EXISTS idx_work_items_owner ON work_items (owner_agent, updated_at DESC);
CREATE TABLE IF NOT EXISTS events (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    ts           INTEGER NOT NULL,
    type         TEXT NOT NULL,
    actor        TEXT,
    work_item_id TEXT,
    payload      TEXT NOT NULL,
    FOREIGN KEY (work_item_id) REFERENCES work_items (id)
);
CREATE INDEX IF NOT EXISTS idx_events_ts ON events (ts DESC);
CREATE INDEX IF NOT EXISTS idx_events_type_ts ON events (type, ts DESC);
CREATE INDEX IF NOT EXISTS idx_events_work_item ON events (work_item_id);
INSERT OR IGNORE INTO schema_migrations
VALUES ('0001', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
