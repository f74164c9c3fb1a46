"""Figures of Stepscope, measured beside its peers: `python -m bench`."""
