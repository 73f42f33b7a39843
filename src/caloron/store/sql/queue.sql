-- name: enqueue
INSERT INTO work_items (id, kind, payload, status, owner_agent, created_at, updated_at)
VALUES (:id, :kind, :payload, :status, :owner, :now, :now)
ON CONFLICT (id) DO NOTHING
-- name: enqueue_lease
INSERT INTO leases (item, priority, not_before) VALUES (:id, :priority, :not_before)
ON CONFLICT (item) DO UPDATE SET priority = excluded.priority, not_before = excluded.not_before
-- name: has_pending
-- Each condition on an open status stands twice: only then does SQLite use the short index.
SELECT 1 FROM work_items WHERE status = 'pending' AND status IN ('pending', 'in_flight')
  AND instr(:kinds, '"' || kind || '"') > 0
  AND substr(id, 1, length(:scope)) = :scope
LIMIT 1
-- name: pending
SELECT id FROM work_items WHERE status = 'pending' AND status IN ('pending', 'in_flight')
-- name: attempts
SELECT item, attempt FROM leases WHERE item >= :scope AND item < :scope || char(1114111) AND attempt > 0
-- name: claim
UPDATE leases
SET token = token + 1, holder = :holder, expires_at = :now + :lease_ms,
    started_at = NULL, activity_at = NULL, result = NULL
WHERE item = (
    SELECT w.id FROM work_items w JOIN leases l ON l.item = w.id
    WHERE w.status = 'pending' AND w.status IN ('pending', 'in_flight')
      AND instr(:kinds, '"' || w.kind || '"') > 0
      AND substr(w.id, 1, length(:scope)) = :scope
      AND l.not_before <= :now
      AND (SELECT count(*) FROM work_items busy JOIN leases taken ON taken.item = busy.id
           WHERE busy.status = 'in_flight' AND busy.status IN ('pending', 'in_flight')
             AND instr(:kinds, '"' || busy.kind || '"') > 0
             AND taken.result IS NULL AND taken.expires_at > :now) < :cap
    ORDER BY l.priority DESC, w.created_at, w.id
    LIMIT 1)
RETURNING item, token, attempt,
    (SELECT kind FROM work_items WHERE id = item) AS kind,
    (SELECT payload FROM work_items WHERE id = item) AS payload
-- name: claimed_item
UPDATE work_items SET status = 'in_flight', owner_agent = :owner, updated_at = :now
WHERE id = :id
-- name: begin_attempt
UPDATE leases
SET attempt = attempt + 1, started_at = (SELECT ms FROM clock), activity_at = (SELECT ms FROM clock),
    expires_at = (SELECT ms FROM clock) + :lease_ms
WHERE item = :item AND token = :token
RETURNING attempt
-- name: renew
UPDATE leases
SET expires_at = (SELECT ms FROM clock) + :lease_ms,
    activity_at = CASE WHEN :active THEN (SELECT ms FROM clock) ELSE activity_at END
WHERE item = :item AND token = :token
-- name: write_result
UPDATE leases SET result = :result, activity_at = (SELECT ms FROM clock)
WHERE item = :item AND token = :token AND result IS NULL
-- name: settle
UPDATE work_items SET status = :status, updated_at = :now
WHERE id = :item AND status = 'in_flight'
  AND EXISTS (SELECT 1 FROM leases WHERE item = :item AND token = :token)
-- name: reopen
UPDATE work_items
SET status = 'pending', payload = coalesce(:payload, payload), updated_at = (SELECT ms FROM clock)
WHERE id = :item
-- name: fence
UPDATE leases SET token = token + 1, holder = '', expires_at = 0 WHERE item = :item
-- name: hold
UPDATE leases SET not_before = max(not_before, :until) WHERE item = :item
-- name: cancel
UPDATE work_items SET status = 'cancelled', updated_at = (SELECT ms FROM clock)
WHERE id = :item AND status IN ('pending', 'in_flight')
-- name: in_flight
SELECT w.id, w.kind, w.payload, l.token, l.holder, l.expires_at, l.attempt, l.started_at, l.activity_at, l.result,
       (SELECT ms FROM clock) AS now_ms
FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight')
ORDER BY w.created_at, w.id
-- name: append_event
INSERT INTO events (ts, type, actor, work_item_id, payload)
VALUES (coalesce(:ts, (SELECT ms FROM clock)), :type, :actor, :item, :payload)
-- name: event_key
INSERT INTO event_keys (key, event_id) VALUES (:key, last_insert_rowid())
-- name: event_of_key
SELECT event_id FROM event_keys WHERE key = :key
-- name: now
SELECT ms FROM clock
