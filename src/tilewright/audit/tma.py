"""Rules of the tma family."""
