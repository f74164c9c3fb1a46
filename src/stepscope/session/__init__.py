"""Begin and end a run: wires the recorder, the store and the start of the watcher."""
