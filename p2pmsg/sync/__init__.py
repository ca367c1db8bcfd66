"""Threaded shells around the cores."""
