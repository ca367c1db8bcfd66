"""The faces for asyncio, written by hand."""
