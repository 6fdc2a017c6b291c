"""OpenAI's two families: chat completions and text completions."""
