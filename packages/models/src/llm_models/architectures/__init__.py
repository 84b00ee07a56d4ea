"""Owns the specs of the architectures that ship with this package; one file each."""
