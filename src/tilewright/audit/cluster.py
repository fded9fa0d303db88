"""Rules of the cluster family."""
