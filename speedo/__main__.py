"""`python -m speedo` is the command `speedo`."""

from speedo.cli.main import main

if __name__ == "__main__":
    main()
