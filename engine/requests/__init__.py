"""Who waits, who runs, and the one thread that does it."""
