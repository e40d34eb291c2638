"""Lab: ``python -m lab`` runs the commands from a checkout."""

from lab.commands import main

if __name__ == "__main__":
    main()
