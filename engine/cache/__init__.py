"""Chats and their keys and values, in memory and on the disk."""
