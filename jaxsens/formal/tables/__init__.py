"""The second paper's networks and Hahn's restrictions, measured: their tables and what is said of them."""
