"""The machine around the run: one file per source, each a `Sampler`; none knows of the others."""
