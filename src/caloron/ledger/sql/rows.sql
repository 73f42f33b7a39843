-- name: sprints
SELECT * FROM sprints ORDER BY number
-- name: tasks
SELECT * FROM tasks ORDER BY sprint, position
-- name: observations
SELECT * FROM observations
-- name: inbox
SELECT * FROM inbox ORDER BY id
-- name: cycle_actions
SELECT * FROM cycle_actions ORDER BY id
-- name: actions
SELECT * FROM actions ORDER BY id
-- name: work_items
SELECT id, id AS item, payload AS data FROM work_items ORDER BY id
-- name: references
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
