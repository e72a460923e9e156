"""Algorithms: one file each, to be copied and changed."""
