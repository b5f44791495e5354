"""The worker process: one device, its memory, its executors and its Device machine."""
