"""Processes: child processes with limits, pools of workers, the device lock, and JSON messages between processes."""
