"""Compiled code: kernels are the plan's ops (op.py), the rest is what they are made of.

Nothing here knows models.
"""
