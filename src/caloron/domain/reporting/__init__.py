"""Reports for people: reasons, progress, inbox, KPIs, retro, texts for the forge."""
