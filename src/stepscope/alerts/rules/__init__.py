"""Alert rules: their language, the built-in set, backtests and suggestions."""
