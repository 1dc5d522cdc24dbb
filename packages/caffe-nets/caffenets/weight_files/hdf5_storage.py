"""HDF5 files of strangers: a dataset is taken only if its values are in the file itself.

HDF5 has four ways to name another file, which its library would open and read: external storage (any file, as raw
values), virtual datasets, external links, and soft links to such.
"""

from __future__ import annotations

from typing import Any, Final

OWN_COPY: Final = (
    "give a file that holds its own values (in Python, for each dataset: h5py.File(NEW, 'a')[NAME] = "
    "h5py.File(OLD)[NAME][()])"
)


class ForeignStorageError(Exception):
    """What is not in the file itself; follows its name, and `OWN_COPY` follows the text."""


def hard_child(group: Any, name: str) -> Any:
    """What the group holds under this name, None for nothing; raises `ForeignStorageError` for a link."""
    import h5py

    try:
        link = group.get(name, getlink=True)
    except TypeError:  # of a kind that a plug-in defines
        link = ()
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise ForeignStorageError(f"has a link, and no values, under {name!r:.100}")
    found = group[name]
    if isinstance(found, h5py.Dataset):
        # Not asked for its shape: for that, the library opens the files of a virtual dataset.
        created = found.id.get_create_plist()
        if created.get_layout() == h5py.h5d.VIRTUAL:
            raise ForeignStorageError(
                f"has {name!r:.100} as a virtual dataset, whose values are in other files"
            )
        if created.get_external_count():
            raise ForeignStorageError(f"has the values of {name!r:.100} in another file")
    return found


def own_dataset(opened: Any, path: str) -> Any:
    """As `hard_child`, for a path of names with slashes between them."""
    found = opened
    for name in filter(None, path.split("/")):
        found = hard_child(found, name) if hasattr(found, "items") else None
    return found
