"""Cli: ``python -m foretell.cli``."""

from foretell.cli.main import main

if __name__ == "__main__":
    main()
