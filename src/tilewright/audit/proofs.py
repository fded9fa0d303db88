"""What was shown of each barrier, and what was not: arrivals and parity.

Rules report what is surely wrong. A barrier of which nothing is reported may still be wrong where the analysis does
not see, so each one is either shown to be right here or listed: just as many arrivals a phase as it was initialised
with (MBAR-03), every wait for the phase that comes next in its thread's walk (MBAR-07). Bytes are in `tma_bytes.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.mbarrier_counts import count_unproven
from tilewright.audit.phases import unproven
from tilewright.audit.signals import WAITS, all_understood, signalled_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.rules import Outcome


def arrivals_shown(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-03: barriers of which it is not shown that each phase gets just the count."""
    for ring in kernel.rings:
        if not signalled_by(kernel, ring) and not kernel.of_ring(ring, *WAITS):
            continue
        found = count_unproven(kernel, ring)
        if found is not None:
            op, why = found
            if not all_understood(kernel):
                why = "some instruction names a barrier that is not understood"
            yield kernel.undecided(
                "MBAR-03", f"{ring.name}: whether every phase gets {ring.count} arrivals: {why}", op
            )


def parity_shown(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-07: barriers with a wait of which it is not shown that its parity follows the phases."""
    for ring in kernel.rings:
        found = unproven(kernel, ring)
        if found is not None:
            wait, why = found
            yield kernel.undecided(
                "MBAR-07",
                f"{ring.name}: whether this wait's parity follows the phases: {why}",
                wait,
            )
