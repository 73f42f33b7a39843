-- name: by_kind
SELECT kind, status, count(*) AS items FROM work_items GROUP BY kind, status ORDER BY kind
-- name: open_count
SELECT count(*) FROM work_items WHERE status IN ('pending', 'in_flight', 'waiting_human')
-- name: open
-- Another program may have written a time as text.
SELECT w.id, w.kind, w.status, w.owner_agent, CAST(w.created_at AS INTEGER) AS created_at,
       CAST(w.updated_at AS INTEGER) AS updated_at,
       l.attempt, l.expires_at, l.not_before
FROM work_items w JOIN caloron_leases l ON l.item = w.id
WHERE w.status IN ('pending', 'in_flight', 'waiting_human')
ORDER BY w.updated_at LIMIT :limit
-- name: stale_count
SELECT count(*) FROM caloron_leases
WHERE status IN ('pending', 'in_flight') AND status = 'in_flight' AND expires_at <= :now
-- name: last_change
SELECT max(CAST(coalesce((SELECT max(updated_at) FROM work_items), 0) AS INTEGER),
           CAST(coalesce((SELECT max(ts) FROM events), 0) AS INTEGER))
-- name: events_by_type
SELECT type, count(*) AS events FROM events WHERE ts >= :begins AND ts < :ends
GROUP BY type ORDER BY events DESC, type
-- name: top_actors
SELECT coalesce(actor, '(none)') AS actor, count(*) AS events FROM events
WHERE ts >= :begins AND ts < :ends GROUP BY actor ORDER BY events DESC, actor LIMIT 10
-- name: outcomes
SELECT json_extract(payload, '$.status') AS status, count(*) AS items FROM events
WHERE type = 'work_item_resolved' AND ts >= :begins AND ts < :ends
  AND json_valid(payload) AND json_extract(payload, '$.status') IN ('done', 'failed', 'cancelled')
GROUP BY 1
-- name: times
-- How long each errand that ended as done took, from when it was handed in and from its last claim.
SELECT e.ts - w.created_at AS whole,
       e.ts - (SELECT max(c.ts) FROM events c
               WHERE c.work_item_id = e.work_item_id AND c.type = 'work_item_claimed'
                 AND c.ts <= e.ts) AS working
FROM events e JOIN work_items w ON w.id = e.work_item_id
WHERE e.type = 'work_item_resolved' AND e.ts >= :begins AND e.ts < :ends
  AND json_valid(e.payload) AND json_extract(e.payload, '$.status') = 'done'
-- name: failures
SELECT w.kind, w.id, json_extract(e.payload, '$.notes') AS notes
FROM events e JOIN work_items w ON w.id = e.work_item_id
WHERE e.type = 'work_item_resolved' AND e.ts >= :begins AND e.ts < :ends
  AND json_valid(e.payload) AND json_extract(e.payload, '$.status') = 'failed'
ORDER BY w.kind, e.ts, e.id
