"""The classes of the documents that keep state in the training process."""
