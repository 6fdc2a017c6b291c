"""llama-server's own API: completions, filling in the middle, text and tokens, slots."""
