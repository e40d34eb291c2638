"""``python -m foretell``: the command line where the ``foretell`` script is not installed."""

from foretell.cli.main import main

if __name__ == "__main__":
    main()
