"""What people read: reasons, progress, inbox, KPIs, retro, texts for the forge."""
