"""The resumable job: one record an item, progress, and tables of rows."""
