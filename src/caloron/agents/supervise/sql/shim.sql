-- name: lease
SELECT token, attempt FROM leases WHERE item = :item
