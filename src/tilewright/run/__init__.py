"""What needs the `cuda` extra: compile with NVRTC on any machine, probe the GPU at hand.

`compiler` needs the compiler library only; `gpu`, `measure` and `probe` need a driver and a GPU too.
`record`, `device_file` and `document` are plain Python: they turn a recorded probe into a device file and
a report, on any machine. Nothing outside this package and the command line imports it.
"""
