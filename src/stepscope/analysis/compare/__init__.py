"""Compare runs: levels, differences, baselines and gates."""
