-- name: next_version
UPDATE counter SET version = version + 1 RETURNING version
-- name: next_number
UPDATE counter SET number = number + 1 RETURNING number
-- name: tracked
SELECT 0 AS number, 'main' AS branch, coalesce((SELECT tip FROM branches WHERE name = 'main'), '') AS head,
       '' AS base, version
FROM counter
UNION ALL
SELECT number, branch, head, base, version FROM pulls WHERE state = 'open'

-- name: numbered
SELECT number FROM issues WHERE number = :number UNION ALL SELECT number FROM pulls WHERE number = :number

-- name: issue
SELECT * FROM issues WHERE number = :number
-- name: issues
SELECT * FROM issues WHERE :state IN (state, 'all') ORDER BY number
-- name: issues_changed
SELECT * FROM issues WHERE version > :since AND version <= :upto
-- name: issue_marked
SELECT * FROM issues WHERE marker_key = :key AND author = :author ORDER BY number LIMIT 1
-- name: create_issue
INSERT INTO issues (number, version, title, body, author, labels, marker_key)
VALUES (:number, :version, :title, :body, :author, :labels, :key)
-- name: edit_issue
UPDATE issues SET body = :body, title = coalesce(nullif(:title, ''), title), marker_key = :key,
    version = :version WHERE number = :number
-- name: label_issue
UPDATE issues SET labels = :labels, version = :version WHERE number = :number
-- name: close_issue
UPDATE issues SET state = 'closed', closed_by = :by, version = :version WHERE number = :number
-- name: reopen_issue
UPDATE issues SET state = 'open', closed_by = '', version = :version WHERE number = :number

-- name: pull
SELECT * FROM pulls WHERE number = :number
-- name: pulls
SELECT * FROM pulls WHERE :state IN (state, 'all') ORDER BY number
-- name: pulls_changed
SELECT * FROM pulls WHERE version > :since AND version <= :upto
-- name: pull_marked
SELECT * FROM pulls WHERE marker_key = :key AND author = :author AND branch = :branch ORDER BY number LIMIT 1
-- name: pull_open
SELECT * FROM pulls WHERE branch = :branch AND state = 'open'
-- name: open_pull
INSERT INTO pulls (number, version, title, body, author, branch, head, base, marker_key)
VALUES (:number, :version, :title, :body, :author, :branch, :head, (SELECT tip FROM branches WHERE name = 'main'), :key)
-- name: edit_pull
UPDATE pulls SET body = :body, marker_key = :key, version = :version WHERE number = :number
-- name: move_pull
UPDATE pulls SET head = :head, base = (SELECT tip FROM branches WHERE name = 'main'), version = :version
WHERE number = :number
-- name: reopen_pull
UPDATE pulls SET state = 'open', head = :head, base = (SELECT tip FROM branches WHERE name = 'main'), ended_by = '',
    version = :version
WHERE number = :number
-- name: end_pull
UPDATE pulls SET state = :state, head = :head, ended_by = :by, merge_commit = :commit, version = :version
WHERE number = :number

-- name: comments
SELECT * FROM comments WHERE issue = :number ORDER BY id
-- name: comments_changed
SELECT * FROM comments WHERE version > :since AND version <= :upto
-- name: comment_marked
SELECT * FROM comments WHERE issue = :number AND marker_key = :key AND author = :author ORDER BY id LIMIT 1
-- name: comment
INSERT INTO comments (version, issue, author, body, marker_key, created_at)
VALUES (:version, :issue, :author, :body, :key, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
RETURNING *
-- name: edit_comment
UPDATE comments SET body = :body, marker_key = :key, version = :version WHERE id = :id AND issue = :issue
RETURNING *

-- name: reviews
SELECT * FROM reviews WHERE pull = :number ORDER BY id
-- name: reviews_changed
SELECT * FROM reviews WHERE version > :since AND version <= :upto
-- name: review_marked
SELECT * FROM reviews WHERE pull = :number AND marker_key = :key AND author = :author ORDER BY id LIMIT 1
-- name: review
INSERT INTO reviews (version, pull, head, verdict, author, body, marker_key)
VALUES (:version, :pull, :head, :verdict, :author, :body, :key)
RETURNING *

-- name: branch
SELECT * FROM branches WHERE name = :name
-- name: branches_changed
SELECT * FROM branches WHERE version > :since AND version <= :upto AND name = 'main'
-- name: see_branch
INSERT INTO branches (name, version, tip) VALUES (:name, :version, :tip)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, tip = excluded.tip
