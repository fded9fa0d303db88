"""Sections of the PTX ISA 9.1 as its pages name them, for links."""

from __future__ import annotations

ISA = "https://docs.nvidia.com/cuda/parallel-thread-execution/"
_SYNC = "parallel-synchronization-and-communication-instructions-"
_MOVE = "data-movement-and-conversion-instructions-"
_WGMMA = "asynchronous-warpgroup-level-matrix-instructions-"
ANCHORS = {
    "2.2.2": "cluster-of-cooperative-thread-arrays",
    "5.5.7": "tensor-swizzling-modes",
    "9.7.9.12": f"{_MOVE}st-async",
    "9.7.9.23": f"{_MOVE}mapa",
    "9.7.9.25.4.1": f"{_MOVE}cp-async-bulk",
    "9.7.9.27.1.2": f"{_MOVE}cp-async-bulk-tensor",
    "9.7.13.1": f"{_SYNC}bar",
    "9.7.13.3": f"{_SYNC}barrier-cluster",
    "9.7.13.4": f"{_SYNC}membar",
    "9.7.13.13": f"{_SYNC}griddepcontrol",
    "9.7.13.14": f"{_SYNC}elect-sync",
    "9.7.13.15.1": f"{_SYNC}mbarrier-size-alignment",
    "9.7.13.15.2": f"{_SYNC}mbarrier-contents",
    "9.7.13.15.4": f"{_SYNC}mbarrier-phase",
    "9.7.13.15.8": f"{_SYNC}mbarrier-smem",
    "9.7.13.15.9": f"{_SYNC}mbarrier-init",
    "9.7.13.15.10": f"{_SYNC}mbarrier-inval",
    "9.7.13.15.13": f"{_SYNC}mbarrier-arrive",
    "9.7.13.15.16": f"{_SYNC}mbarrier-test-wait-try-wait",
    "9.7.13.17": f"{_SYNC}clusterlaunchcontrol-try-cancel",
    "9.7.13.18": f"{_SYNC}clusterlaunchcontrol-query-cancel",
    "9.7.15.7.1": f"{_WGMMA}wgmma-fence",
    "9.7.15.7.3": f"{_WGMMA}wgmma-wait-group",
    "9.7.16.2.1": "tcgen05-matrix-shape",
    "9.7.16.4.1": "tcgen05-shared-memory-descriptor",
    "9.7.16.4.2": "tcgen05-instruction-descriptor",
    "9.7.16.5": "tcgen05-issue-granularity",
    "9.7.16.6.2": "tcgen05-memory-consistency-model-pipelined-instructions",
    "9.7.16.6.4": "tcgen05-memory-consistency-model-canonical-sync-patterns",
    "9.7.16.7.1": "tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit",
    "9.7.16.8.1": "tcgen05-tensor-memory-ld-st-access-restrictions",
    "9.7.16.11.1": "tcgen05-special-sync-operations-fence",
    "9.7.16.12.1": "tcgen-async-sync-operations-commit",
    "9.7.19.5": "miscellaneous-instructions-setmaxnreg",
    "11.7": "cluster-dimension-directives",
}


def links(sections: str) -> list[str]:
    """Where each of the sections named in a rule stands on the web; the document itself for one not known."""
    return [f"{ISA}#{ANCHORS[each]}" if each in ANCHORS else ISA for each in sections.split(", ")]
