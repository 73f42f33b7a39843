-- name: kv
SELECT value FROM kv WHERE key = :key
-- name: keys
SELECT substr(key, length(:prefix) + 1) AS key, value FROM kv
WHERE substr(key, 1, length(:prefix)) = :prefix ORDER BY key
-- name: tables
SELECT name FROM sqlite_master WHERE type = 'table'
-- name: sprint_count
SELECT count(*) FROM sprints
-- name: newest_number
SELECT COALESCE(max(number), 0) FROM sprints
-- name: number
SELECT number FROM sprints WHERE id = :sprint
-- name: history
SELECT s.data, (SELECT count(*) FROM tasks t WHERE t.sprint = s.id) AS total,
       (SELECT count(*) FROM tasks t WHERE t.sprint = s.id AND t.status = 'Done') AS done
FROM sprints s ORDER BY s.number DESC LIMIT :limit
-- name: finished
-- Sprints that nothing can continue. A stopped sprint waits for a person until it is resumed or
-- discarded.
SELECT id, ended_at FROM sprints s WHERE phase = 'ended' AND ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM tasks t
                  WHERE t.sprint = s.id AND t.status NOT IN ('Done', 'Cancelled'))
  AND (COALESCE(json_extract(CAST(data AS TEXT), '$.planning.failure'), '') = ''
       OR COALESCE(json_extract(CAST(data AS TEXT), '$.discard.by'), '') <> '')
ORDER BY number
-- name: in_flight
-- The condition on the status stands twice: only then does SQLite use the small index of open work.
SELECT w.id, l.token, (SELECT number FROM sprints
                       WHERE id = substr(w.id, 1, instr(w.id, '/') - 1)) AS number
FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight') AND l.result IS NULL
ORDER BY w.created_at, w.id
-- name: running
SELECT w.id, l.token, l.started_at AS started, w.updated_at AS claimed
FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight') AND l.result IS NULL
ORDER BY w.created_at, w.id
-- name: live_agent
SELECT l.item FROM leases l JOIN work_items w ON w.id = l.item
WHERE w.status = 'in_flight' AND l.result IS NULL AND l.expires_at > (SELECT ms FROM clock)
ORDER BY l.item LIMIT 1
-- name: task_rounds
SELECT sprint, id, status,
       COALESCE(json_array_length(CAST(data AS TEXT), '$.review.reviewed'), 0) AS rounds
FROM tasks
-- name: task
SELECT status, reason, json_extract(CAST(data AS TEXT), '$.plan.title') AS title,
       json_extract(CAST(data AS TEXT), '$.usage.spent.usd') AS cost
FROM tasks WHERE sprint = :sprint AND id = :task
-- name: newest_sprint_with_task
SELECT s.id FROM sprints s JOIN tasks t ON t.sprint = s.id
WHERE t.id = :task ORDER BY s.number DESC LIMIT 1
-- name: newest_sprint_with_run
-- "0" is the character after "/".
SELECT id FROM sprints s
WHERE EXISTS (SELECT 1 FROM events WHERE work_item_id >= s.id || '/' || :task || '/'
              AND work_item_id < s.id || '/' || :task || '0')
ORDER BY number DESC LIMIT 1
-- name: has_run
SELECT 1 FROM events
WHERE work_item_id >= :item || '/' AND work_item_id < :item || '0' AND +type = 'attempt_started'
LIMIT 1
-- name: task_events
SELECT id, ts, type, actor, work_item_id AS item, payload FROM events
WHERE work_item_id >= :item || '/' AND work_item_id < :item || '0'
UNION ALL
SELECT id, ts, type, actor, work_item_id, payload FROM events
WHERE type IN ('task_moved', 'effect_done', 'effect_failed', 'state_imported')
  AND json_extract(payload, '$.sprint') = :sprint
  AND (json_extract(payload, '$.task') = :task
       OR json_type(payload, '$.changes."' || :task || '"') IS NOT NULL)
ORDER BY id
-- name: pending_effects
SELECT kind, key, tries, note FROM actions
WHERE sprint = :sprint AND task = :task AND state IN ('planned', 'intended') ORDER BY id
-- name: wrong_references
SELECT 'actions/' || id || ' (' || key || ')' AS "row", 'a task of ' || sprint AS expected, task AS found
FROM actions a
WHERE task <> '' AND state IN ('planned', 'intended')
  AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.sprint = a.sprint AND t.id = a.task)
UNION ALL
SELECT 'work_items/' || id, 'a sprint that it belongs to', 'none' FROM work_items
WHERE substr(id, 1, instr(id || '/', '/') - 1) NOT IN (SELECT id FROM sprints)
UNION ALL
SELECT 'work_items/' || id, 'a lease', 'none' FROM work_items WHERE id NOT IN (SELECT item FROM leases)
UNION ALL
SELECT 'work_items/' || w.id, 'a token, because it is in flight', 'none'
FROM work_items w JOIN leases l ON l.item = w.id WHERE w.status = 'in_flight' AND l.token = 0
-- name: newest_observation
SELECT sprint, object, version FROM observations ORDER BY version DESC LIMIT 1
-- name: empty_entries
CREATE TEMP TABLE entries (file, key, position, whose, version, text)
-- name: empty_records
CREATE TEMP TABLE records (sprint, made_by, data)
-- name: light_sprint
SELECT data FROM sprints ORDER BY id = :running DESC, number DESC LIMIT 1
-- name: light_tasks
SELECT status, data FROM tasks WHERE sprint = :sprint ORDER BY position
-- name: sprint_names
SELECT number FROM sprints ORDER BY number DESC
-- name: task_names
-- The tasks of the last sprint.
SELECT id FROM tasks WHERE sprint = (SELECT id FROM sprints ORDER BY number DESC LIMIT 1)
ORDER BY position
