"""Replicas as this gateway sees them: load, faults, quarantine, who may wait for one."""
