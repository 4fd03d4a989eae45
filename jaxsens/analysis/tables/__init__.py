"""`[attention]` of a sweep and of its report."""
