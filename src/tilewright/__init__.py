"""Plan, generate, prove and measure cluster-persistent GPU kernels."""
