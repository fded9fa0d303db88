"""Micro-kernels that a GPU and the emulator both run: PTX, launch, seeded inputs, what numpy expects, and how close."""
