"""A scenario file: read, checked, and built into what is simulated."""
