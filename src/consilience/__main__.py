"""`python -m consilience` is the command `consilience`."""

from consilience.cli.main import main

if __name__ == "__main__":
    main()
