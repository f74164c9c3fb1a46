"""Print to a terminal: text, tables, progress and numbers."""
