"""The run on disk: drain, seal, compact, read, downsample, SQL, retention, salvage."""
