"""The first true error among many ranks: the one that all other errors follow from."""
