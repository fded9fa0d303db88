"""Sweeps: thousands of problems on several devices, one answer each.

rows.py         problems of a CSV, JSON Lines or model file
transformer.py  a model's layers as problems
answer.py       one problem on one device, as a flat record
store.py        what is known already, the journal of a running sweep, the results file
processes.py    tasks on this machine's processes
on_ray.py       tasks on a Ray cluster (extra `sweep`)
run.py          sweep(): rows and devices in, results file out
summary.py      where clusters pay, where CLC pays, time by layer
"""

from tilewright.sweep.run import sweep

__all__ = ["sweep"]
