"""What a user declares: stages, how they are joined into a workflow, its objective and its priority.

Declaring is separate from running. A workflow function is called once, with handles in place of values, and
leaves a `Graph`: plain data that the planner reads, the simulator runs without any model, and a log can hold.

Users import from `dovetail`. This file imports nothing, because the pure packages import `workflow.graph`, and may
not bring in the files, processes and models of its neighbours with it.
"""
