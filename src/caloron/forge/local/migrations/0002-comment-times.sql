-- When a comment was written; of those that were there before nobody knows.
ALTER TABLE comments ADD COLUMN created_at TEXT NOT NULL DEFAULT '';
