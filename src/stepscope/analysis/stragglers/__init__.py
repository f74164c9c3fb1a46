"""Which rank is late, why, and what it costs the job: one judgement for the diagnosis and the live alert."""
