-- REPLACE deletes a row without a word to any delete trigger. A new event has no number yet, which
-- shows as -1 here; so none may have that number.
CREATE TRIGGER caloron_events_no_replace BEFORE INSERT ON events
WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
CREATE TRIGGER caloron_events_numbered AFTER INSERT ON events WHEN NEW.id = -1
BEGIN
    SELECT RAISE(ABORT, 'events are numbered from 1 on');
END;
