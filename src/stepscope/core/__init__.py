"""The shared vocabulary: records, ring layout, metric metadata, clock, configuration, errors."""
