"""Read what experiment trackers keep: databases, folders, archives and exports with one or many runs."""
