"""The documents' spellings, from a checkout: thin wrappers over `stepscope`."""
