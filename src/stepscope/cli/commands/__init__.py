"""The commands of `stepscope`, one module each. A module's docstring is its help."""
