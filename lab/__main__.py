"""``python -m lab``: the laboratory's commands, from a checkout."""

from lab.commands import main

if __name__ == "__main__":
    main()
