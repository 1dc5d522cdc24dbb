"""`python -m speedo` is the command `speedo`."""

import sys

# The working folder may hold a `caffe` too: see speedo/system/import_order.py
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from speedo.cli.main import main

if __name__ == "__main__":
    main()
