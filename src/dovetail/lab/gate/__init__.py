"""Measuring kernels of several clients on one gated device."""
