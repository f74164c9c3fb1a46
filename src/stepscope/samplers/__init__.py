"""Sample the machine: one file per source, each a `Sampler`. No source depends on another."""
