"""Folder at the front of the import path where PYTHONPATH is set: see `speedo/system/import_order.py`."""
