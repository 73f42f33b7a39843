-- name: is_imported
SELECT 1 FROM kv WHERE key = 'history_taken_over'
-- name: set_imported
INSERT INTO kv (key, value) VALUES ('history_taken_over', '1')
-- name: imported
SELECT key, position, text FROM entries WHERE file = :file AND whose = 'theirs' ORDER BY position DESC
-- name: goals
SELECT number, goal FROM sprints
