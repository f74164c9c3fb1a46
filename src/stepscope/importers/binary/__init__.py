"""Read binary logs of other tools: TensorBoard event files and W&B run files."""
