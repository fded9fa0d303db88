"""Rules of the wgmma family."""
