"""Rules of the mbarrier family."""
