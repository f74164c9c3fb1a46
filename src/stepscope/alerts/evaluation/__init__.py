"""Evaluate alert rules on incoming data and keep the state of each alert."""
