-- name: value
SELECT value FROM kv WHERE key = :key
-- name: has_table
SELECT 1 FROM sqlite_master WHERE name = :name
-- name: empty_entries
CREATE TEMP TABLE entries (file, key, position, whose, version, text)
-- name: empty_records
CREATE TEMP TABLE records (sprint, made_by, data)
-- name: sprint
SELECT data FROM sprints ORDER BY id = :running DESC, number DESC LIMIT 1
-- name: tasks
SELECT data FROM tasks WHERE sprint = :sprint ORDER BY position
-- name: begun
SELECT item FROM leases WHERE item > :scope AND item < :scope || '~' AND attempt > 0
-- name: queued
-- Only with both conditions on the status SQLite uses the short index of open work.
SELECT id FROM work_items WHERE status = 'pending' AND status IN ('pending', 'in_flight')
  AND substr(id, 1, length(:scope)) = :scope
-- name: ended
SELECT w.id FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight')
  AND l.result IS NOT NULL AND substr(w.id, 1, length(:scope)) = :scope
