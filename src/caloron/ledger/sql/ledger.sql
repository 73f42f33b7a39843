-- name: next_number
-- Sprints that were imported from an older Caloron have numbers too.
SELECT max(COALESCE((SELECT max(number) FROM sprints), 0),
           COALESCE((SELECT max(position) FROM entries WHERE file = 'sprints.json' AND whose = 'theirs'), 0)) + 1
-- name: insert_sprint
INSERT INTO sprints (id, number, goal, phase, created_at, version, data)
VALUES (:id, :number, :goal, :phase, :created_at, 1, :data)
-- name: sprint
SELECT version, data FROM sprints WHERE id = :sprint
-- name: last_sprint
SELECT id FROM sprints ORDER BY number DESC LIMIT 1
-- name: sprint_ids
SELECT id FROM sprints ORDER BY number
-- name: planned_sprints
-- Sprints whose plan was written, newest first.
SELECT DISTINCT s.id FROM sprints s JOIN tasks t ON t.sprint = s.id
WHERE s.phase IN ('running', 'retro', 'ended') ORDER BY s.number DESC
-- name: sprints_by_end
SELECT id FROM sprints WHERE phase = 'ended' ORDER BY ended_at, number
-- name: unfinished_sprints
SELECT id FROM sprints WHERE phase <> 'ended' ORDER BY number
-- name: swap_sprint
UPDATE sprints SET version = version + 1, phase = :phase, ended_at = :ended_at, data = :data
WHERE id = :sprint AND version = :version
-- name: tasks
SELECT id, data FROM tasks WHERE sprint = :sprint ORDER BY position
-- name: put_task
INSERT INTO tasks (sprint, id, position, status, reason, data)
VALUES (:sprint, :id, :position, :status, :reason, :data)
ON CONFLICT (sprint, id) DO UPDATE
SET position = excluded.position, status = excluded.status, reason = excluded.reason,
    data = excluded.data
-- name: forget_task
DELETE FROM tasks WHERE sprint = :sprint AND id = :id
-- name: observations
SELECT object, data FROM observations WHERE sprint = :sprint
-- name: put_observation
INSERT INTO observations (sprint, object, version, data) VALUES (:sprint, :object, :version, :data)
ON CONFLICT (sprint, object) DO UPDATE
SET version = excluded.version, data = excluded.data WHERE excluded.version > version
-- name: append_fact
INSERT INTO inbox (sprint, key, data) VALUES (:sprint, :key, :data)
ON CONFLICT (sprint, key) DO NOTHING
-- name: facts
SELECT id, data FROM inbox WHERE sprint = :sprint ORDER BY id LIMIT :limit
-- name: interruption_waits
SELECT 1 FROM inbox WHERE sprint = :sprint AND key >= :prefix AND key < :prefix || char(1114111)
  AND key LIKE '%#interrupted' LIMIT 1
-- name: interruptions
SELECT count(*) AS times FROM events
WHERE work_item_id = :item AND type = 'work_item_reopened' AND json_extract(payload, '$.reason') = :reason
-- name: forget_facts
DELETE FROM inbox WHERE sprint = :sprint AND id <= :through
-- name: plan_action
INSERT INTO actions (sprint, task, key, kind, data, state)
VALUES (:sprint, :task, :key, :kind, :data, 'planned')
ON CONFLICT (key) DO NOTHING
-- name: forget_failed_action
-- An effect that is planned again goes to the end: a push must stay before its pull request.
DELETE FROM actions WHERE key = :key AND state = 'failed'
-- name: supersede_action
-- Only the newest effect of its kind is needed; one that was begun is finished first.
DELETE FROM actions
WHERE sprint = :sprint AND task = :task AND kind = :kind AND state = 'planned' AND key <> :key
-- name: retry_action
UPDATE actions SET state = 'intended', not_before = 0, note = '' WHERE key = :key AND state = 'failed'
-- name: open_actions
SELECT DISTINCT task FROM actions WHERE sprint = :sprint AND state IN ('planned', 'intended')
-- name: due_actions
SELECT a.id, a.data, a.kind, a.state = 'intended' AS intended, a.not_before FROM actions a
WHERE a.sprint = :sprint AND a.state IN ('planned', 'intended')
  AND NOT EXISTS (
      SELECT 1 FROM actions b
      WHERE b.sprint = a.sprint AND b.task = a.task AND b.id < a.id AND b.state IN ('planned', 'intended')
        -- Comments about progress neither wait for other effects nor delay them.
        AND (b.kind IN ('progress', 'describe')) = (a.kind IN ('progress', 'describe')))
ORDER BY a.id
-- name: intend_action
UPDATE actions SET state = 'intended', tries = tries + 1 WHERE id = :id AND state = 'planned'
-- name: end_action
UPDATE actions SET state = :state, note = :note WHERE id = :id AND state = 'intended'
-- name: postpone_action
UPDATE actions SET not_before = :not_before, note = :note WHERE id = :id
-- name: waiting_actions
SELECT task, note FROM actions
WHERE sprint = :sprint AND state IN ('planned', 'intended') AND note <> ''
-- name: get_kv
SELECT value FROM kv WHERE key = :key
-- name: put_kv
INSERT INTO kv (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value
-- name: put_entry
INSERT INTO entries (file, key, position, whose, version, text)
VALUES (:file, :key, :position, :whose, :version, :text)
ON CONFLICT (file, key, whose) DO UPDATE
SET position = excluded.position, version = excluded.version, text = excluded.text
-- name: newest_entries
SELECT key, position, text FROM entries WHERE file = :file AND whose = :whose
ORDER BY position DESC, key LIMIT :limit
