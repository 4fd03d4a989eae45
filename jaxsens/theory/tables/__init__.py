"""`[bounds]` of a sweep and of its report, and the table of restrictions."""
