-- name: sprint
SELECT id, number, data FROM sprints WHERE id = :sprint
-- name: sprints
SELECT id, number, data FROM sprints WHERE number > :after ORDER BY number
-- name: tasks
SELECT sprint, id, data FROM tasks WHERE sprint = :sprint ORDER BY position
-- name: runs
-- What tells of processes. Items begin with their sprint, so one sprint is one range of the index of
-- items; the plus signs keep SQLite from walking through the whole diary in another order.
SELECT work_item_id AS item, ts, type, payload FROM events
WHERE work_item_id >= :low AND work_item_id < :high
  AND +type IN ('work_item_claimed', 'attempt_started', 'attempt_ended', 'agent_reported',
               'work_item_reopened', 'work_item_resolved')
ORDER BY +id
-- name: seen
SELECT item, activity_at FROM leases
WHERE item >= :low AND item < :high AND activity_at IS NOT NULL
-- name: lost_engines
SELECT count(*) FROM events WHERE type = 'engine_lost' AND json_extract(payload, '$.sprint') = :sprint
-- name: waiting
SELECT id, number, data FROM sprints s
WHERE phase <> 'ended' OR json_extract(CAST(data AS TEXT), '$.stopped') <> ''
   OR EXISTS (SELECT 1 FROM tasks t WHERE t.sprint = s.id AND t.status = 'Escalated')
ORDER BY number
-- name: merging
SELECT id FROM sprints s
WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.sprint = s.id AND t.status = 'Done'
              AND json_extract(CAST(t.data AS TEXT), '$.pull') IS NOT NULL)
ORDER BY number DESC LIMIT :limit
-- name: numbers
SELECT id, number FROM sprints
-- name: by_number
SELECT id FROM sprints WHERE number = :number
-- name: by_id
SELECT id FROM sprints WHERE id = :id
-- name: newest
SELECT COALESCE(max(number), 0) FROM sprints
-- name: last
SELECT id FROM sprints ORDER BY number DESC LIMIT 1
-- name: kept
SELECT value FROM kv WHERE key = 'learnings'
-- name: has_entries
-- A ledger that no sprint was begun in since may be of an older form, and those who look change nothing.
SELECT 1 FROM sqlite_master WHERE name = 'entries'
-- name: adopted
SELECT key, text FROM entries WHERE file = 'sprints.json' AND whose = 'theirs'
ORDER BY position DESC LIMIT :limit
-- name: is_adopted
SELECT 1 FROM entries
WHERE file = 'sprints.json' AND whose = 'theirs' AND (key = :id OR position = CAST(:number AS INTEGER))
