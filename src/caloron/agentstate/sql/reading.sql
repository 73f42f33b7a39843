-- name: list
SELECT id, kind, payload, status, owner_agent, created_at, updated_at, notes FROM work_items
WHERE (:kind IS NULL OR kind = :kind) AND (:status IS NULL OR status = :status)
  AND (:owner IS NULL OR owner_agent = :owner)
ORDER BY updated_at DESC, rowid DESC LIMIT :limit
-- name: pending
SELECT id, kind, payload, status, owner_agent, created_at, updated_at, notes FROM work_items
WHERE status = 'pending' AND (:kind IS NULL OR kind = :kind)
ORDER BY created_at, rowid
-- name: get
SELECT id, kind, payload, status, owner_agent, created_at, updated_at, notes FROM work_items
WHERE id = :item
-- name: tail
SELECT id, ts, type, actor, work_item_id, payload FROM events ORDER BY ts DESC, id DESC LIMIT :limit
-- name: since
SELECT id, ts, type, actor, work_item_id, payload FROM events WHERE ts >= :since ORDER BY ts, id
-- name: of_item
SELECT id, ts, type, actor, work_item_id, payload FROM events
WHERE work_item_id = :item ORDER BY ts, id
