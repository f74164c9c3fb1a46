"""Find out what an argument such as RUN names, read it, and hand what analysis needs to analysis."""
