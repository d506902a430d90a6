"""User code as mypy and pyright see it. It is checked, never run.

What must be an error carries a `type: ignore`. Both checkers report one that is not needed, so the error has to be
there.
"""
