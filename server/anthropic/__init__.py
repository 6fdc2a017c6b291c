"""Anthropic's family: messages, and counting their tokens."""
