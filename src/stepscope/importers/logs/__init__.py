"""Read text logs of other tools."""
