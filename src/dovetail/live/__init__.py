"""The live world: the real clock, worker processes, and the tensors that travel between them."""
