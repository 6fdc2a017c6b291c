"""Streamed text becomes content, thinking and calls."""
