"""Tensors in shared memory: arenas, codecs, and which value lies where."""
