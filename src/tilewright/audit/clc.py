"""Rules of the clc family."""
