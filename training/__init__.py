"""Monitored trainings under the documents' names, from a checkout."""
