"""What a screen shows, as plain data; the same for page, terminal and report."""
