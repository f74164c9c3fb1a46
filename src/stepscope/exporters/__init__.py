"""Write runs in other formats: one file per format, and `formats` as their table."""
