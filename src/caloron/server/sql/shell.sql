-- name: agent
SELECT * FROM agents WHERE sprint = :sprint AND agent = :agent
-- name: agents
SELECT agents.*, heartbeats.at AS heard_at, heartbeats.status AS heard, heartbeats.tokens AS tokens
FROM agents LEFT JOIN heartbeats USING (sprint, agent)
ORDER BY sprint, agent
-- name: reserve
INSERT INTO agents (sprint, agent, task, run, state, run_dir, began_at)
VALUES (:sprint, :agent, :task, 1, 'starting', :run_dir, :now)
ON CONFLICT DO UPDATE SET
    task = excluded.task, run = run + 1, state = 'starting', run_dir = excluded.run_dir,
    pid = 0, started = 0, boot = '', began_at = excluded.began_at, ended_at = NULL, exit_code = NULL
-- name: forget_heartbeat
DELETE FROM heartbeats WHERE sprint = :sprint AND agent = :agent
-- name: place
UPDATE agents SET workspace = :workspace, base = :base WHERE sprint = :sprint AND agent = :agent
-- name: remember_workspace
INSERT INTO workspaces VALUES (:path) ON CONFLICT DO NOTHING
-- name: workspaces
SELECT path FROM workspaces
-- name: started
UPDATE agents SET state = 'running', pid = :pid, started = :started, boot = :boot
WHERE sprint = :sprint AND agent = :agent
-- name: ended
UPDATE agents SET state = 'ended', ended_at = coalesce(ended_at, :now), exit_code = coalesce(exit_code, :exit_code)
WHERE sprint = :sprint AND agent = :agent AND run = :run
-- name: heartbeat
INSERT INTO heartbeats VALUES (:sprint_id, :agent_id, :at, :status, :tokens_used)
ON CONFLICT DO UPDATE SET at = excluded.at, status = excluded.status, tokens = excluded.tokens
