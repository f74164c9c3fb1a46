"""Why a run is slow, why it went wrong, what changed, and what to do: evidence in, findings out."""
