"""MLflow as a sink: a server, or its database in SQLite."""
