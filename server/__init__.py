"""The HTTP side of Rushlight: the OpenAI API over one engine, known by its public names only."""
