"""What commands do: simulate, plan, replay, trace, demo; tables, plots and time lines of a run."""
