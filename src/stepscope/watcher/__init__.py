"""The process beside the trainer: it drains the rings, seals the run and notices how the trainer ended."""
