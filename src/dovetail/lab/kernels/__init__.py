"""A device simulated kernel by kernel, with hosts that launch on it and rivals that share it."""
