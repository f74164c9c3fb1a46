"""Write TensorBoard event files, after a run or while it is live."""
