"""The entry of a worker process; apart from `main`, which may be compiled."""

from __future__ import annotations

from .main import main

if __name__ == "__main__":
    main()
