"""Send notifications: queue, retries, channels and their allowed addresses."""
