"""Serve metrics to Prometheus and draw Grafana dashboards."""
