"""Adapters on the real systems they are for."""
