-- What files with one entry per thing are made of, so that only what changed is worked out anew.
CREATE TABLE entries (
    file     TEXT NOT NULL,
    key      TEXT NOT NULL,
    position INTEGER NOT NULL,
    -- An entry of theirs, an older Caloron's or a person's, is kept as it is.
    whose    TEXT NOT NULL CHECK (whose IN ('ours', 'theirs')),
    -- Of what state of the thing the entry tells.
    version  INTEGER NOT NULL DEFAULT 0,
    text     TEXT NOT NULL,
    PRIMARY KEY (file, key, whose)
) WITHOUT ROWID;
CREATE INDEX entries_in_order ON entries (file, whose, position);
