"""`python -m clients` is the `rushlight` command."""

from clients.cli import main

main()
