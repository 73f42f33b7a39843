-- REPLACE deletes a row without a word to any delete trigger, and foreign keys that cascade take the
-- rest along. The lease of an item outlives that: an item that is added while there is a lease for
-- it takes the place of another. Every other way to add one behaves as it does in agent-state.
DROP TRIGGER caloron_work_items_added;
DROP TRIGGER caloron_work_items_taken;
DROP TRIGGER caloron_work_items_left;
DROP TRIGGER caloron_work_items_touched;
CREATE TABLE caloron_leases_kept (
    item        TEXT PRIMARY KEY REFERENCES work_items (id),
    -- Raised by every claim and whenever the item leaves its holder; a write with an older token
    -- changes nothing.
    token       INTEGER NOT NULL DEFAULT 0,
    holder      TEXT NOT NULL DEFAULT '',
    expires_at  INTEGER NOT NULL DEFAULT 0,
    -- How often it was claimed.
    attempt     INTEGER NOT NULL DEFAULT 0,
    priority    INTEGER NOT NULL DEFAULT 0,
    not_before  INTEGER NOT NULL DEFAULT 0,
    -- When a claim of ours took it: the change of the item that follows has this time.
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
INSERT INTO caloron_leases_kept
SELECT item, token, holder, expires_at, attempt, priority, not_before, started_at, activity_at,
       result, kind, status, created_at, guest
FROM caloron_leases;
DROP TABLE caloron_leases;
ALTER TABLE caloron_leases_kept RENAME TO caloron_leases;
CREATE INDEX caloron_leases_open ON caloron_leases
    (priority DESC, created_at, item, kind, status, expires_at, not_before)
    WHERE status IN ('pending', 'in_flight');

CREATE TRIGGER caloron_work_items_added AFTER INSERT ON work_items
BEGIN
    SELECT RAISE(ABORT, 'a work item is never replaced; annotate, resolve or reopen it')
    FROM caloron_leases WHERE item = NEW.id;
    INSERT INTO caloron_leases
        (item, kind, status, created_at, holder, expires_at, attempt, guest)
    VALUES (NEW.id, NEW.kind, NEW.status, NEW.created_at,
            iif(NEW.status = 'in_flight', coalesce(NEW.owner_agent, ''), ''),
            iif(NEW.status = 'in_flight', NEW.updated_at + 600000, 0),
            NEW.status = 'in_flight', NEW.status = 'in_flight');
END;
CREATE TRIGGER caloron_work_items_no_delete BEFORE DELETE ON work_items
BEGIN
    SELECT RAISE(ABORT, 'work items are never deleted; resolve them as cancelled');
END;
CREATE TRIGGER caloron_work_items_no_rename BEFORE UPDATE OF id ON work_items
WHEN NEW.id IS NOT OLD.id
BEGIN
    SELECT RAISE(ABORT, 'the id of a work item stays');
END;

-- A claim of ours gives the lease first: whoever changes the item to another owner or at another time
-- than the lease has knows of none. It may not take what is leased, also not in the holder's own
-- name, or has ended; what it may take is leased to it as to a guest.
-- ROLLBACK: a statement that can only be undone with all that is begun needs no journal of its own.
CREATE TRIGGER caloron_work_items_taken AFTER UPDATE OF status, owner_agent ON work_items
WHEN NEW.status = 'in_flight'
     AND NOT EXISTS (SELECT 1 FROM caloron_leases
                     WHERE item = NEW.id AND status = 'in_flight'
                       AND holder = coalesce(NEW.owner_agent, '')
                       AND (started_at = NEW.updated_at OR (guest = 1 AND OLD.status = 'in_flight')))
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

-- A new event has no number yet, which shows as -1 here; so none may have that number.
CREATE TRIGGER caloron_events_no_replace BEFORE INSERT ON events
WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
CREATE TRIGGER caloron_events_numbered AFTER INSERT ON events WHEN NEW.id = -1
BEGIN
    SELECT RAISE(ABORT, 'events are numbered from 1 on');
END;
