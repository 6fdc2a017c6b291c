"""What memory and CPUs there are, and what is done with them."""
