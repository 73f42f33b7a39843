-- name: has_records
SELECT 1 FROM sqlite_master WHERE name = 'records'
-- name: ended
SELECT s.id, CASE WHEN r.made_by = :made_by THEN r.data END AS record
FROM sprints s LEFT JOIN records r ON r.sprint = s.id
WHERE s.number > :after AND s.phase = 'ended' ORDER BY s.number
-- name: ended_without_records
SELECT s.id, NULL AS record FROM sprints s
WHERE s.number > :after AND s.phase = 'ended' ORDER BY s.number
-- name: missing
SELECT s.id FROM sprints s LEFT JOIN records r ON r.sprint = s.id AND r.made_by = :made_by
WHERE s.phase = 'ended' AND r.sprint IS NULL ORDER BY s.number LIMIT :limit
-- name: keep
INSERT INTO records (sprint, made_by, data) VALUES (:sprint, :made_by, :data)
ON CONFLICT (sprint) DO UPDATE SET made_by = excluded.made_by, data = excluded.data
-- name: kept
SELECT sprint, data FROM records WHERE made_by = :made_by ORDER BY sprint
-- name: forget
DELETE FROM records WHERE sprint = :sprint
