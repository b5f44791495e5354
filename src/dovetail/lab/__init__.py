"""Experiments and what comes out of them: scenarios, replays, traces, tables and reports."""
