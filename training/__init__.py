"""Monitored trainings under compatible names, from a checkout."""
