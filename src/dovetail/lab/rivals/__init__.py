"""Rival policies behind the protocols of the five answers; one file each."""
