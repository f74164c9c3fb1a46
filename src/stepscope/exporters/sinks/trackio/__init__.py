"""Trackio as a sink: files in its inbox."""
