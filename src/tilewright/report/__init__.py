"""Views over a plan and its simulations. They read; nothing here decides."""
