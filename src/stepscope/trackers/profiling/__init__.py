"""The classes behind `stepscope.profiling`."""
