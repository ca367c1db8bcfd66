"""Who is who, and who may what; see README.md."""
