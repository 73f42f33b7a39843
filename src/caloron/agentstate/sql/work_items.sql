-- name: claim
-- Waiting, or held by somebody whose lease is over; the first entries of one index.
UPDATE caloron_leases
SET token = token + 1, holder = :holder, expires_at = :now + :lease_ms,
    attempt = attempt + 1, guest = 0, status = 'in_flight', started_at = :now
WHERE item = (
    SELECT item FROM caloron_leases
    WHERE status IN ('pending', 'in_flight')
      AND (status = 'pending' OR expires_at <= :now)
      AND not_before <= :now
      AND kind IN (SELECT value FROM json_each(:kinds))
    ORDER BY priority DESC, created_at, item
    LIMIT 1)
RETURNING item, token, attempt, kind, (SELECT payload FROM work_items WHERE id = item) AS payload
-- name: claim_item
UPDATE caloron_leases
SET token = token + 1, holder = :holder, expires_at = :now + :lease_ms,
    attempt = attempt + 1, guest = 0, status = 'in_flight', started_at = :now
WHERE item = :item
  AND (status = 'pending'
       OR (status = 'in_flight' AND expires_at <= :now))
RETURNING item, token, attempt, kind, (SELECT payload FROM work_items WHERE id = item) AS payload
-- name: claimed_item
UPDATE OR ROLLBACK work_items
SET status = 'in_flight', owner_agent = :owner, updated_at = :now
WHERE id = :id
-- name: settle
-- Not IN: for a list of three SQLite makes a table, each time.
UPDATE OR ROLLBACK work_items SET status = :status, updated_at = :now
WHERE id = :item AND (status = 'pending' OR status = 'in_flight' OR status = 'waiting_human')
  AND (:token IS NULL
       OR (status = 'in_flight'
           AND EXISTS (SELECT 1 FROM caloron_leases WHERE item = :item AND token = :token)))
-- name: item
SELECT id, kind, payload, status, owner_agent, created_at, updated_at, notes
FROM work_items WHERE id = :item
-- name: lease
SELECT l.token, l.holder, l.expires_at, l.attempt, l.priority, l.not_before, l.guest, l.status,
       (SELECT ms FROM caloron_clock) AS now_ms
FROM caloron_leases l WHERE l.item = :item
-- name: held
SELECT w.id, w.kind, w.payload, w.status, w.owner_agent, w.created_at, w.updated_at, w.notes,
       l.token, l.holder, l.expires_at, l.attempt
FROM work_items w JOIN caloron_leases l ON l.item = w.id WHERE w.id = :item
-- name: move
UPDATE work_items SET status = :status, updated_at = (SELECT ms FROM caloron_clock)
WHERE id = :item
RETURNING updated_at, owner_agent
-- name: not_before
UPDATE caloron_leases SET not_before = (SELECT ms FROM caloron_clock) + :delay_ms WHERE item = :item
-- name: set_notes
UPDATE work_items SET notes = :notes WHERE id = :item
-- name: annotate
UPDATE work_items SET notes = :notes, updated_at = (SELECT ms FROM caloron_clock)
WHERE id = :item RETURNING updated_at, owner_agent
-- name: worn_out
SELECT item FROM caloron_leases
WHERE status IN ('pending', 'in_flight') AND status = 'in_flight'
  AND expires_at <= (SELECT ms FROM caloron_clock) AND attempt >= :most
  AND (:kinds = '[]' OR kind IN (SELECT value FROM json_each(:kinds)))
LIMIT 100
-- name: replay
SELECT w.id, w.kind, w.payload, w.status, w.owner_agent, w.created_at, w.updated_at, w.notes,
       l.attempt, l.expires_at
FROM caloron_leases l JOIN work_items w ON w.id = l.item
WHERE l.status IN ('pending', 'in_flight')
  AND l.not_before <= (SELECT ms FROM caloron_clock)
  AND (l.status = 'pending'
       OR (l.expires_at <= (SELECT ms FROM caloron_clock)
           AND (:threshold_ms = 0
                OR w.updated_at < (SELECT ms FROM caloron_clock) - :threshold_ms)))
  AND (:kind IS NULL OR w.kind = :kind) AND (:owner IS NULL OR w.owner_agent IS :owner)
ORDER BY w.created_at, w.rowid
-- name: notes
SELECT at, notes FROM caloron_notes WHERE item = :item ORDER BY id
-- name: event_by_id
SELECT id, ts, type, actor, work_item_id, payload FROM events WHERE id = :id
-- name: mirror
INSERT OR IGNORE INTO work_items (id, kind, payload, status, owner_agent, created_at, updated_at)
VALUES (:id, :kind, :payload, 'pending', :owner, :at, :at)
-- name: mirror_lease
-- The trigger against foreign claims lets a status pass that the lease already has.
UPDATE caloron_leases
SET status = 'in_flight', token = token + 1, holder = :owner, expires_at = :at + :lease_ms,
    attempt = attempt + 1, started_at = :at, guest = 0
WHERE item = :id
-- name: mirror_status
UPDATE work_items SET status = :status, owner_agent = :owner, updated_at = :at WHERE id = :id
