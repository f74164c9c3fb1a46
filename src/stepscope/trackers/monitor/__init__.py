"""The classes behind `stepscope.monitor`."""
