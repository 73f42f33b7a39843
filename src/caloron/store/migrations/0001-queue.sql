CREATE TABLE work_items (
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
CREATE INDEX idx_work_items_kind_status ON work_items (kind, status, updated_at DESC);
CREATE INDEX idx_work_items_owner ON work_items (owner_agent, updated_at DESC);
-- The queue and the cap look only at what is open, however long the history is.
CREATE INDEX caloron_work_items_open ON work_items (status) WHERE status IN ('pending', 'in_flight');

CREATE TABLE events (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    ts           INTEGER NOT NULL,
    type         TEXT NOT NULL,
    actor        TEXT,
    work_item_id TEXT REFERENCES work_items (id),
    payload      TEXT NOT NULL
);
CREATE INDEX idx_events_ts ON events (ts DESC);
CREATE INDEX idx_events_type_ts ON events (type, ts DESC);
CREATE INDEX idx_events_work_item ON events (work_item_id);
CREATE TRIGGER caloron_events_no_update BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
CREATE TRIGGER caloron_events_no_delete BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;

-- Natural keys: the same fact told twice is one event.
CREATE TABLE event_keys (
    key      TEXT PRIMARY KEY,
    event_id INTEGER NOT NULL REFERENCES events (id)
) WITHOUT ROWID;

CREATE TABLE leases (
    item        TEXT PRIMARY KEY REFERENCES work_items (id),
    -- Raised by every claim; a write with an older token changes nothing.
    token       INTEGER NOT NULL DEFAULT 0,
    holder      TEXT NOT NULL DEFAULT '',
    expires_at  INTEGER NOT NULL DEFAULT 0,
    -- How many agent processes were started for this item.
    attempt     INTEGER NOT NULL DEFAULT 0,
    priority    INTEGER NOT NULL DEFAULT 0,
    not_before  INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER,
    activity_at INTEGER,
    result      TEXT
) WITHOUT ROWID;

-- The one clock of leases. A test shifts it; nothing else writes the offset.
CREATE TABLE clock_offset (ms INTEGER NOT NULL);
INSERT INTO clock_offset VALUES (0);
CREATE VIEW clock AS
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + (SELECT ms FROM clock_offset) AS ms;
