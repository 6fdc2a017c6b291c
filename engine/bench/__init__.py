"""Measurements of the engine on this machine. Nothing here runs while a model is served."""
