"""Sinks: other tools that get a copy of a run. They read from the run on disk, in a process beside the trainer."""
