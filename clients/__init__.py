"""The outside of Rushlight: command line, terminal chat and a small client. They speak HTTP only.

The exceptions are the two commands that run an engine themselves: `serve` and `bench`.
"""
