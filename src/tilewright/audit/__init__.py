"""Audit: read anyone's PTX and say where it breaks the contract of clusters, barriers, TMA, tcgen05 and CLC.

    kernel.py     one kernel as the rules see it
    rules.py      the registry
    clc.py, mbarrier.py, cluster.py, tma.py, tcgen05.py, wgmma.py, launch.py    the rules, a family each
    run.py        audit_module(): every rule over every kernel
    text.py       findings as compilers print them, and as JSON

Knows nothing of the emulator, and needs neither CUDA nor a GPU.
"""

from tilewright.audit.run import Report, audit_module

__all__ = ["Report", "audit_module"]
