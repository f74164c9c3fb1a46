"""Pure functions: arrays in, findings out. Nothing here reads a run, a clock or a device."""
