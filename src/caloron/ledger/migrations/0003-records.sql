-- What each ended sprint came to, kept so that thousands can be looked at together. Facts are the
-- truth: whatever changes one of a sprint, by whatever hand, takes its record away, and the next
-- look works it out anew.
CREATE TABLE records (
    sprint  TEXT PRIMARY KEY REFERENCES sprints (id),
    -- The rules that made it; others make another.
    made_by TEXT NOT NULL,
    data    BLOB NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER caloron_records_sprint AFTER UPDATE ON sprints
BEGIN
    DELETE FROM records WHERE sprint IN (OLD.id, NEW.id);
END;
CREATE TRIGGER caloron_records_new_task AFTER INSERT ON tasks
BEGIN
    DELETE FROM records WHERE sprint = NEW.sprint;
END;
CREATE TRIGGER caloron_records_task AFTER UPDATE ON tasks
BEGIN
    DELETE FROM records WHERE sprint IN (OLD.sprint, NEW.sprint);
END;
CREATE TRIGGER caloron_records_no_task AFTER DELETE ON tasks
BEGIN
    DELETE FROM records WHERE sprint = OLD.sprint;
END;
-- Only what tells of runs: see `runs` in figures.sql.
CREATE TRIGGER caloron_records_event AFTER INSERT ON events
WHEN NEW.type IN ('work_item_claimed', 'attempt_started', 'attempt_ended', 'agent_reported',
                  'work_item_reopened', 'work_item_resolved')
BEGIN
    DELETE FROM records WHERE sprint = substr(NEW.work_item_id, 1, instr(NEW.work_item_id, '/') - 1);
END;
