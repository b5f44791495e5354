"""What happened, written down and read again: logs, books, stories of requests, verdicts, kernel records.

Reading and writing only; nothing here decides. `control` and `device` do not import it.
"""
