"""The resumable job: one record an item, claims between processes, progress, and tables of rows."""
