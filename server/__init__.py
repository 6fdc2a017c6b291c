"""The HTTP side of Rushlight: the APIs over one engine, known by its public names only."""
