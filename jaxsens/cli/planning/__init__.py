"""What a measurement takes on devices that need not be at hand: programs, memory, time, and the job that runs it."""
