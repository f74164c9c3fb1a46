"""Read the output of nvidia-smi."""
