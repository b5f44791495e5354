"""A device that other processes launch kernels on."""
