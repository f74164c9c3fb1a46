"""Compatible classes that keep state in the training process."""
