-- name: sprint
SELECT id, number, data FROM sprints WHERE id = :sprint
-- name: sprints
SELECT id, number, data FROM sprints WHERE number > :after ORDER BY number
-- name: tasks
SELECT sprint, id, data FROM tasks WHERE sprint = :sprint ORDER BY position
-- name: runs
-- The events of processes. Item ids begin with their sprint, so one sprint is one range of the index of
-- items; the plus signs keep SQLite from scanning all events in another order.
SELECT work_item_id AS item, ts, type, payload FROM events
WHERE work_item_id >= :low AND work_item_id < :high
  AND +type IN ('work_item_claimed', 'attempt_started', 'attempt_ended', 'agent_reported',
               'work_item_reopened', 'work_item_resolved')
ORDER BY +id
-- name: active
SELECT item, activity_at / 1000.0 AS at FROM leases
WHERE item >= :low AND item < :high AND activity_at IS NOT NULL
-- name: lost_engines
SELECT count(*) FROM events WHERE type = 'engine_lost' AND json_extract(payload, '$.sprint') = :sprint
-- name: waiting
SELECT id, number, data FROM sprints s
WHERE phase <> 'ended' OR json_extract(CAST(data AS TEXT), '$.planning.failure') <> ''
   OR EXISTS (SELECT 1 FROM tasks t WHERE t.sprint = s.id AND (t.status = 'Escalated'
              OR json_extract(CAST(t.data AS TEXT), '$.step') = 'awaiting_approval'))
ORDER BY number
-- name: merging
SELECT id FROM sprints s
WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.sprint = s.id AND t.status = 'Done'
              AND json_extract(CAST(t.data AS TEXT), '$.links.pull') IS NOT NULL)
ORDER BY number DESC LIMIT :limit
-- name: has_sprints
SELECT 1 FROM sqlite_master WHERE name = 'sprints'
-- name: all
SELECT id, number, phase FROM sprints ORDER BY number
-- name: by_number
SELECT id FROM sprints WHERE number = :number
-- name: by_id
SELECT id FROM sprints WHERE id = :id
-- name: newest
SELECT COALESCE(max(number), 0) FROM sprints
-- name: last
SELECT id FROM sprints ORDER BY number DESC LIMIT 1
-- name: learnings
SELECT value FROM kv WHERE key = 'learnings'
-- name: adopted
SELECT key, text FROM entries WHERE file = 'sprints.json' AND whose = 'theirs'
ORDER BY position DESC LIMIT :limit
-- name: is_adopted
SELECT 1 FROM entries
WHERE file = 'sprints.json' AND whose = 'theirs' AND (key = :id OR position = CAST(:number AS INTEGER))
-- name: ended
SELECT s.id, s.number, COALESCE(s.ended_at, s.created_at) AS ended_at, r.data AS record
FROM sprints s LEFT JOIN records r ON r.sprint = s.id AND r.made_by = :made_by
WHERE s.number > :after AND s.phase = 'ended' ORDER BY s.number
-- name: missing_records
SELECT s.id FROM sprints s LEFT JOIN records r ON r.sprint = s.id AND r.made_by = :made_by
WHERE s.phase = 'ended' AND r.sprint IS NULL ORDER BY s.number LIMIT :limit
-- name: put_record
INSERT INTO records (sprint, made_by, data) VALUES (:sprint, :made_by, :data)
ON CONFLICT (sprint) DO UPDATE SET made_by = excluded.made_by, data = excluded.data
-- name: stored_records
SELECT sprint, data FROM records WHERE made_by = :made_by ORDER BY sprint
-- name: forget_record
DELETE FROM records WHERE sprint = :sprint
