-- What Caloron adds, all of it named caloron_*: leases, keys, kept notes, and the triggers that hold
-- the rules also against a program that knows none of this.

-- The one clock of leases. A test shifts it; nothing else writes the offset.
CREATE TABLE caloron_clock_offset (ms INTEGER NOT NULL);
INSERT INTO caloron_clock_offset VALUES (0);
CREATE VIEW caloron_clock AS
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
       + (SELECT ms FROM caloron_clock_offset) AS ms;

CREATE TABLE caloron_leases (
    item        TEXT PRIMARY KEY REFERENCES work_items (id) ON DELETE CASCADE,
    -- Raised by every claim and whenever the item leaves its holder; a write with an older token
    -- changes nothing.
    token       INTEGER NOT NULL DEFAULT 0,
    holder      TEXT NOT NULL DEFAULT '',
    expires_at  INTEGER NOT NULL DEFAULT 0,
    -- How often it was claimed.
    attempt     INTEGER NOT NULL DEFAULT 0,
    priority    INTEGER NOT NULL DEFAULT 0,
    not_before  INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER,
    activity_at INTEGER,
    result      TEXT,
    -- Of the item, kept by trigger: the next one to claim is the first entry of one index.
    kind        TEXT NOT NULL DEFAULT '',
    status      TEXT NOT NULL DEFAULT 'pending',
    created_at  INTEGER NOT NULL DEFAULT 0,
    -- 1: claimed by a program that knows no leases; its lease is ten minutes from its last sign.
    guest       INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX caloron_leases_open ON caloron_leases
    (priority DESC, created_at, item, kind, status, expires_at, not_before)
    WHERE status IN ('pending', 'in_flight');

-- Natural keys: the same fact told twice is one event.
CREATE TABLE caloron_event_keys (
    key      TEXT PRIMARY KEY,
    event_id INTEGER NOT NULL REFERENCES events (id)
) WITHOUT ROWID;

-- Every text that stood in the notes of an item and was written over, by whatever program.
CREATE TABLE caloron_notes (
    id    INTEGER PRIMARY KEY,
    item  TEXT NOT NULL,
    at    INTEGER NOT NULL,
    notes TEXT NOT NULL
);
CREATE INDEX caloron_notes_item ON caloron_notes (item);

-- The dashboard and `pending` look only at what is open, however long the history is.
CREATE INDEX caloron_work_items_open ON work_items (updated_at)
    WHERE status IN ('pending', 'in_flight', 'waiting_human');
CREATE INDEX caloron_work_items_pending ON work_items (created_at) WHERE status = 'pending';

INSERT INTO caloron_leases (item, kind, status, created_at, holder, expires_at, attempt, guest)
SELECT id, kind, status, created_at,
       iif(status = 'in_flight', coalesce(owner_agent, ''), ''),
       iif(status = 'in_flight', updated_at + 600000, 0),
       status = 'in_flight', status = 'in_flight'
FROM work_items;

CREATE TRIGGER caloron_work_items_added AFTER INSERT ON work_items
BEGIN
    INSERT INTO caloron_leases
        (item, kind, status, created_at, holder, expires_at, attempt, guest)
    VALUES (NEW.id, NEW.kind, NEW.status, NEW.created_at,
            iif(NEW.status = 'in_flight', coalesce(NEW.owner_agent, ''), ''),
            iif(NEW.status = 'in_flight', NEW.updated_at + 600000, 0),
            NEW.status = 'in_flight', NEW.status = 'in_flight');
END;

-- A claim of ours gives the lease first: whoever sets another owner than the lease has knows of none.
-- It may not take what is leased or has ended; what it may take is leased to it as to a guest.
-- ROLLBACK: a statement that can only be undone with all that is begun needs no journal of its own.
CREATE TRIGGER caloron_work_items_taken AFTER UPDATE OF status, owner_agent ON work_items
WHEN NEW.status = 'in_flight'
     AND (OLD.status <> 'in_flight' OR NEW.owner_agent IS NOT OLD.owner_agent)
     AND NOT EXISTS (SELECT 1 FROM caloron_leases
                     WHERE item = NEW.id AND status = 'in_flight'
                       AND holder = coalesce(NEW.owner_agent, ''))
BEGIN
    SELECT RAISE(ROLLBACK, 'the work item has ended; reopen it first')
    WHERE OLD.status IN ('done', 'failed', 'cancelled');
    SELECT RAISE(ROLLBACK, 'the work item is leased to its owner; wait, or let the owner release it')
    FROM caloron_leases
    WHERE item = NEW.id AND status = 'in_flight' AND guest = 0
      AND expires_at > (SELECT ms FROM caloron_clock);
    UPDATE caloron_leases
    SET status = 'in_flight', token = token + 1, holder = coalesce(NEW.owner_agent, ''),
        expires_at = NEW.updated_at + 600000, attempt = attempt + 1, guest = 1
    WHERE item = NEW.id;
END;
CREATE TRIGGER caloron_work_items_left AFTER UPDATE OF status ON work_items
WHEN NEW.status <> 'in_flight' AND NEW.status <> OLD.status
BEGIN
    UPDATE caloron_leases
    SET status = NEW.status, token = token + (OLD.status = 'in_flight'), holder = '',
        expires_at = 0, guest = 0
    WHERE item = NEW.id;
END;
CREATE TRIGGER caloron_work_items_touched AFTER UPDATE OF updated_at ON work_items
WHEN OLD.status = 'in_flight' AND NEW.status = 'in_flight'
BEGIN
    UPDATE caloron_leases SET expires_at = NEW.updated_at + 600000
    WHERE item = NEW.id AND guest = 1 AND holder = coalesce(NEW.owner_agent, '');
END;

CREATE TRIGGER caloron_notes_kept AFTER UPDATE OF notes ON work_items
WHEN OLD.notes <> '' AND OLD.notes IS NOT NEW.notes
BEGIN
    INSERT INTO caloron_notes (item, at, notes)
    VALUES (OLD.id, (SELECT ms FROM caloron_clock), OLD.notes);
END;
-- Two programs that annotate at once: what one of them read before the other wrote comes back.
CREATE TRIGGER caloron_notes_merged AFTER UPDATE OF notes ON work_items
WHEN substr(OLD.notes, 1, 1) = '{' AND substr(NEW.notes, 1, 1) = '{'
     AND OLD.notes IS NOT NEW.notes
     AND json_valid(OLD.notes) AND json_valid(NEW.notes)
     AND EXISTS (SELECT 1 FROM json_each(OLD.notes)
                 WHERE type <> 'null' AND key NOT IN (SELECT key FROM json_each(NEW.notes)))
BEGIN
    UPDATE work_items
    SET notes = json_patch(NEW.notes, (
        SELECT json_group_object(key, CASE type
                   WHEN 'object' THEN json(value) WHEN 'array' THEN json(value)
                   WHEN 'true' THEN json('true') WHEN 'false' THEN json('false')
                   ELSE value END)
        FROM json_each(OLD.notes)
        WHERE type <> 'null' AND key NOT IN (SELECT key FROM json_each(NEW.notes))))
    WHERE id = NEW.id;
END;

CREATE TRIGGER caloron_events_no_update BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
CREATE TRIGGER caloron_events_no_delete BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
