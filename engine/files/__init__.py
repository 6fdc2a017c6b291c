"""GGUF files: found, mapped, read and checked."""
