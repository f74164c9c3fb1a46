"""Export a run to files: CSV, JSON, JSON lines, Parquet, Arrow."""
