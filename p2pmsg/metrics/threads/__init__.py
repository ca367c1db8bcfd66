"""The faces for threads, made from those for asyncio by `python -m tests.faces`."""
