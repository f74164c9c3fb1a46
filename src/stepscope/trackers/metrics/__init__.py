"""The classes behind `stepscope.metrics`."""
