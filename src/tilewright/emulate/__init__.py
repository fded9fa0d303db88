"""CPU execution of PTX: what a kernel does under every order that the hardware may choose."""
