"""An engine that cannot go on: which failures those are, who is told, and how its processes leave.

Standard library only. `verdict`, `cause`, `peers` and `death` are pure; `note` is a file, `leave` ends
processes.
"""
