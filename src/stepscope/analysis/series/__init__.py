"""Statistics of one series of numbers: trend, anomalies, change points, leaks, forecasts."""
