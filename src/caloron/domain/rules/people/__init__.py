"""Rules for what people do: commands, labelled issues, plan issues, edited files."""
