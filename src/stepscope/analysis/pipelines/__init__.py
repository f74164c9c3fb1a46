"""Replays of pipelined trainings from their operations: how long would a step take if some were faster."""
