"""Pure decisions: observed state in, children, gate conditions and bursts out. No I/O, no clock."""
