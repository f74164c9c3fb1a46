"""Compatible module names, from a checkout: thin wrappers over `stepscope`."""
