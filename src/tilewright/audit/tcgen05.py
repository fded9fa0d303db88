"""Rules of the tcgen05 family."""
