-- name: last
SELECT * FROM jobs WHERE job = :job
-- name: register
INSERT INTO jobs (job, cron, handled) VALUES (:job, :cron, :now)
ON CONFLICT DO UPDATE SET cron = excluded.cron, handled = excluded.handled
-- name: start
UPDATE jobs SET
    attempts = CASE WHEN run_id = :run_id AND ended IS NULL THEN attempts + 1 ELSE 1 END,
    due = :due, began = :now, ended = NULL, run_id = :run_id, ok = NULL, error = ''
WHERE job = :job
-- name: finish
UPDATE jobs SET ended = :now, ok = :ok, error = :error, handled = max(handled, due, :now)
WHERE job = :job
