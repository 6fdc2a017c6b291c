"""Ollama's family: chats, completions, embeddings, and what its clients want to know of models."""
