"""Hangs: which ranks are the cause, which wait for them, and why; from plain evidence of four sources."""
