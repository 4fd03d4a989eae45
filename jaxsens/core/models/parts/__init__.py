"""The parts of a transformer's layer: weightings, masks, positions, schedules and scores, each a frozen value."""
