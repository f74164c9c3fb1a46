"""Sinks of labelled series: Prometheus remote write, and OpenTelemetry."""
